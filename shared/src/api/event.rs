//! API Gateway events of both kinds (HTTP API 2.0, REST 1.0) as one request.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::error::Error;

/// The most bytes of a request's body, decoded.
pub const MAX_BODY_BYTES: usize = 6 * 1024 * 1024;

/// What is read of an event. Field names are those of both kinds; the rest of the event is ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    raw_path: Option<String>,
    path: Option<String>,
    http_method: Option<String>,
    raw_query_string: Option<String>,
    query_string_parameters: Option<HashMap<String, String>>,
    multi_value_query_string_parameters: Option<HashMap<String, Vec<String>>>,
    #[serde(borrow)]
    body: Option<Cow<'a, str>>,
    #[serde(default)]
    is_base64_encoded: bool,
    request_context: Option<RequestContext>,
}

#[derive(Deserialize)]
struct RequestContext {
    http: Option<HttpContext>,
}

#[derive(Deserialize)]
struct HttpContext {
    method: Option<String>,
}

/// A request, whatever kind of event carried it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// In capitals.
    pub method: String,
    /// The path's segments after the stage, decoded: `["api", "v1", "task", "add"]`.
    pub path: Vec<String>,
    /// The query's pairs, decoded, in no particular order.
    pub query: Vec<(String, String)>,
    /// The body, decoded; empty when there is none.
    pub body: String,
}

impl Request {
    /// Reads an event's JSON.
    pub fn from_event(event: &str) -> Result<Self, Error> {
        let event: Event<'_> = serde_json::from_str(event)
            .map_err(|error| Error::invalid("event", format!("is not an API Gateway event: {error}")))?;
        let method = event
            .request_context
            .and_then(|context| context.http?.method)
            .or(event.http_method)
            .ok_or_else(|| Error::invalid("event", "has no HTTP method"))?
            .to_ascii_uppercase();
        let path = event.raw_path.or(event.path).ok_or_else(|| Error::invalid("event", "has no path"))?;
        let query = match (event.raw_query_string, event.multi_value_query_string_parameters) {
            (Some(raw), _) => {
                form_urlencoded::parse(raw.as_bytes()).map(|(k, v)| (k.into_owned(), v.into_owned())).collect()
            }
            (None, Some(many)) => {
                many.into_iter().flat_map(|(key, values)| values.into_iter().map(move |v| (key.clone(), v))).collect()
            }
            (None, None) => event.query_string_parameters.into_iter().flatten().collect(),
        };
        Ok(Self { method, path: segments(&path)?, query, body: body(event.body, event.is_base64_encoded)? })
    }

    /// The segments after `/api/v1`, to be matched against; for other paths, all segments.
    pub fn route(&self) -> Vec<&str> {
        let all: Vec<&str> = self.path.iter().map(String::as_str).collect();
        match all.as_slice() {
            ["api", "v1", rest @ ..] => rest.to_vec(),
            _ => all,
        }
    }
}

/// The decoded segments of a path without its stage prefix. Empty segments, as of a trailing slash, do not count.
fn segments(path: &str) -> Result<Vec<String>, Error> {
    let mut segments = Vec::new();
    for raw in path.split('/').filter(|segment| !segment.is_empty()) {
        let decoded =
            percent_decode_str(raw).decode_utf8().map_err(|_| Error::invalid("path", "must be UTF-8 when decoded"))?;
        segments.push(decoded.into_owned());
    }
    let start = segments.windows(2).position(|pair| pair == ["api", "v1"]);
    let start = start.or_else(|| (segments.last()? == "health").then(|| segments.len() - 1));
    segments.drain(..start.unwrap_or(0));
    Ok(segments)
}

fn body(body: Option<Cow<'_, str>>, is_base64: bool) -> Result<String, Error> {
    let too_large = Error::TooLarge { field: "body", limit_bytes: MAX_BODY_BYTES };
    let body = body.unwrap_or_default();
    let decoded = if is_base64 {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(body.as_bytes())
            .map_err(|_| Error::invalid("body", "is flagged as base64 but is not"))?;
        if bytes.len() > MAX_BODY_BYTES {
            return Err(too_large);
        }
        String::from_utf8(bytes).map_err(|_| Error::invalid("body", "must be UTF-8"))?
    } else {
        body.into_owned()
    };
    if decoded.len() > MAX_BODY_BYTES {
        return Err(too_large);
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(event: serde_json::Value) -> Result<Request, Error> {
        Request::from_event(&event.to_string())
    }

    #[test]
    fn both_kinds_of_event_and_every_stage_are_the_same_request() {
        let wanted = ["api", "v1", "task", "cancel", "a:1"];
        for path in [
            "/api/v1/task/cancel/a:1",
            "/Prod/api/v1/task/cancel/a%3A1",
            "/v1/api/v1/task/cancel/a:1/",
            "/api/api/v1//task/cancel/a:1",
            "/$default/$default/api/v1/task/cancel/a:1",
        ] {
            let v2 = json!({"version": "2.0", "rawPath": path, "rawQueryString": "x=1&y=%20",
                "requestContext": {"http": {"method": "get", "path": path}, "stage": "Prod"}});
            let v1 = json!({"path": path, "httpMethod": "GET", "queryStringParameters": {"x": "1", "y": " "},
                "multiValueQueryStringParameters": {"x": ["1"], "y": [" "]}, "body": null,
                "requestContext": {"stage": "Prod", "http": null}});
            for event in [v2, v1] {
                let mut request = request(event).expect(path);
                request.query.sort();
                assert_eq!(request.path, wanted, "{path}");
                assert_eq!(request.method, "GET");
                assert_eq!(request.query, [("x".to_owned(), "1".to_owned()), ("y".to_owned(), " ".to_owned())]);
                assert_eq!(request.route(), ["task", "cancel", "a:1"]);
            }
        }
    }

    #[test]
    fn health_is_found_behind_a_stage() {
        let event = json!({"rawPath": "/Prod/health", "requestContext": {"http": {"method": "GET"}}});
        assert_eq!(request(event).expect("valid").route(), ["health"]);
    }

    #[test]
    fn a_base64_body_is_decoded_and_a_wrong_one_is_refused() {
        let event = |body, flag| json!({"path": "/", "httpMethod": "POST", "body": body, "isBase64Encoded": flag});
        assert_eq!(request(event("eyJhIjoxfQ==", true)).expect("valid").body, "{\"a\":1}");
        assert_eq!(request(event("{\"a\":1}", false)).expect("valid").body, "{\"a\":1}");
        for bad in ["%%%", "/w=="] {
            assert_eq!(request(event(bad, true)).expect_err(bad).word(), "invalid");
        }
    }

    #[test]
    fn the_body_limit_is_measured_on_decoded_bytes() {
        let most = "x".repeat(MAX_BODY_BYTES);
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let event =
            |body: String, flag| json!({"path": "/", "httpMethod": "POST", "body": body, "isBase64Encoded": flag});
        assert!(request(event(encode(&most), true)).is_ok());
        assert_eq!(request(event(encode(&format!("{most}x")), true)).expect_err("long").status(), 413);
        assert_eq!(request(event(format!("{most}x"), false)).expect_err("long").status(), 413);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for text in
            ["", "null", "[]", "{}", "{\"path\":1}", "{\"path\":\"/\"}", "{\"path\":\"/%ff\",\"httpMethod\":\"GET\"}"]
        {
            assert_eq!(Request::from_event(text).expect_err(text).status(), 400, "{text}");
        }
    }
}
