//! HTTP requests as the events that an HTTP API of API Gateway sends (payload format 2.0).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine;
use hyper::header::{COOKIE, HOST, USER_AGENT};
use hyper::http::request::Parts;
use punctual_core::task::random_token;
use punctual_core::time::Timestamp;
use serde_json::{Value, json};

/// What an event has besides the request itself.
#[derive(Clone, Debug)]
pub struct Circumstances<'a> {
    /// Who sent it.
    pub client: SocketAddr,
    /// Where it was sent to.
    pub server: SocketAddr,
    /// When it came.
    pub now: Timestamp,
    /// The route that takes it: `ANY /api/v1/task/{taskId}`.
    pub route_key: &'a str,
    /// What the route's variables stand for.
    pub parameters: &'a BTreeMap<&'a str, String>,
}

/// The event of a request, as JSON.
pub fn event(request: &Parts, body: &[u8], circumstances: &Circumstances<'_>) -> String {
    let path = request.uri.path();
    let query = request.uri.query().unwrap_or_default();
    let source_ip = circumstances.client.ip().to_string();
    let headers = headers(request, circumstances, &source_ip);
    let host = headers.get(HOST.as_str()).cloned().unwrap_or_default();
    let mut event = json!({
        "version": "2.0",
        "routeKey": circumstances.route_key,
        "rawPath": path,
        "rawQueryString": query,
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local",
            "domainName": host,
            "domainPrefix": host.split(['.', ':']).next(),
            "http": {
                "method": request.method.as_str(),
                "path": path,
                "protocol": format!("{:?}", request.version),
                "sourceIp": source_ip,
                "userAgent": headers.get(USER_AGENT.as_str()),
            },
            "requestId": random_token(),
            "routeKey": circumstances.route_key,
            "stage": "$default",
            "time": time(circumstances.now),
            "timeEpoch": circumstances.now.as_ms(),
        },
        "isBase64Encoded": false,
    });
    event["headers"] = json!(headers);
    // API Gateway leaves out what is empty.
    if !query.is_empty() {
        event["queryStringParameters"] = query_parameters(query);
    }
    if !circumstances.parameters.is_empty() {
        event["pathParameters"] = json!(circumstances.parameters);
    }
    let cookies: Vec<String> = request.headers.get_all(COOKIE).iter().flat_map(split_cookies).collect();
    if !cookies.is_empty() {
        event["cookies"] = json!(cookies);
    }
    if !body.is_empty() {
        match std::str::from_utf8(body) {
            Ok(text) => event["body"] = json!(text),
            Err(_) => {
                event["body"] = json!(base64::engine::general_purpose::STANDARD.encode(body));
                event["isBase64Encoded"] = json!(true);
            }
        }
    }
    event.to_string()
}

/// Names in small letters; several of one name joined by commas; cookies apart.
fn headers(request: &Parts, circumstances: &Circumstances<'_>, source_ip: &str) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    let server_port = circumstances.server.port().to_string();
    let sent = request.headers.iter().filter(|(name, _)| *name != COOKIE);
    let sent = sent.map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let added = [
        ("x-forwarded-for", source_ip.to_owned()),
        ("x-forwarded-port", server_port),
        ("x-forwarded-proto", "http".to_owned()),
    ];
    for (name, value) in sent.chain(added) {
        let there = headers.entry(name.to_owned()).or_default();
        if !there.is_empty() {
            there.push(',');
        }
        there.push_str(&value);
    }
    headers
}

fn split_cookies(value: &hyper::header::HeaderValue) -> Vec<String> {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.split(';').map(|cookie| cookie.trim().to_owned()).filter(|cookie| !cookie.is_empty()).collect()
}

fn query_parameters(query: &str) -> Value {
    let mut parameters: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        parameters
            .entry(name.into_owned())
            .and_modify(|there| {
                there.push(',');
                there.push_str(&value);
            })
            .or_insert_with(|| value.to_string());
    }
    json!(parameters)
}

/// `12/Mar/2020:19:03:58 +0000`.
fn time(now: Timestamp) -> String {
    // A manual clock that somebody has moved out of all calendars shows the epoch here.
    let moment = jiff::Timestamp::from_millisecond(now.as_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    moment.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use punctual_core::api;

    fn built(request: hyper::http::request::Builder, body: &[u8]) -> (String, Value) {
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let circumstances = Circumstances {
            client: "192.0.2.7:5000".parse().expect("an address"),
            server: "127.0.0.1:3000".parse().expect("an address"),
            now: Timestamp::from_ms(1_584_039_838_390),
            route_key: "ANY /api/v1/task/cancel/{taskId}",
            parameters: &BTreeMap::from([("taskId", "a:1".to_owned())]),
        };
        let text = event(&parts, body, &circumstances);
        let json = serde_json::from_str(&text).expect("JSON");
        (text, json)
    }

    #[test]
    fn the_core_reads_what_was_sent() {
        let request = Request::post("/api/v1/task/cancel/a%3A1?x=1&y=%20&x=%C3%A9");
        let (text, _) = built(request, "{\"é\": 1}".as_bytes());
        let mut request = api::Request::from_event(&text).expect("a request");
        request.query.sort();
        assert_eq!(request.method, "POST");
        assert_eq!(request.path, ["api", "v1", "task", "cancel", "a:1"]);
        assert_eq!(request.query, [("x", "1"), ("x", "é"), ("y", " ")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(request.body, "{\"é\": 1}");
    }

    #[test]
    fn an_event_has_the_shape_of_api_gateways() {
        let request = Request::get("/api/v1/task/cancel/a:1?x=1&x=2")
            .header("Host", "tasks.example.org:80")
            .header("User-Agent", "curl/8")
            .header("X-Many", "1")
            .header("X-Many", "2")
            .header("Cookie", "a=1; b=2");
        let (_, event) = built(request, b"");
        assert_eq!(event["version"], "2.0");
        assert_eq!(event["routeKey"], "ANY /api/v1/task/cancel/{taskId}");
        assert_eq!(event["rawQueryString"], "x=1&x=2");
        assert_eq!(event["queryStringParameters"], json!({"x": "1,2"}));
        assert_eq!(event["pathParameters"], json!({"taskId": "a:1"}));
        assert_eq!(event["headers"]["x-many"], "1,2");
        assert_eq!(event["headers"]["x-forwarded-for"], "192.0.2.7");
        assert_eq!((&event["headers"]["cookie"], &event["cookies"]), (&Value::Null, &json!(["a=1", "b=2"])));
        assert_eq!((&event["body"], &event["isBase64Encoded"]), (&Value::Null, &json!(false)));
        let context = &event["requestContext"];
        assert_eq!(context["time"], "12/Mar/2020:19:03:58 +0000");
        assert_eq!((&context["stage"], &context["domainPrefix"]), (&json!("$default"), &json!("tasks")));
        let http = json!({"method": "GET", "path": "/api/v1/task/cancel/a:1", "protocol": "HTTP/1.1",
            "sourceIp": "192.0.2.7", "userAgent": "curl/8"});
        assert_eq!(context["http"], http);
    }

    #[test]
    fn a_body_that_is_no_text_is_sent_as_base64() {
        let (text, event) = built(Request::post("/"), b"\xff\x00");
        assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!("/wA="), &json!(true)));
        assert_eq!(api::Request::from_event(&text).expect_err("not UTF-8").to_string(), "body: must be UTF-8");
    }
}
