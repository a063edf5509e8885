//! The handler `webhook`: posts JSON to a URL, signed as Standard Webhooks (specification 1.0.0) says.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use punctual_core::config::{Environment, WrongVariable};
use punctual_core::handler::{Context, Handler, HandlerError};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::Sha256;

use crate::address::{PublicResolver, is_public};

/// The longest pause that a receiver can ask for by `Retry-After`: a day.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Headers that are the service's own, or the connection's.
const RESERVED_HEADERS: [&str; 8] =
    ["host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "te", "trailer"];

/// How webhooks are sent.
#[derive(Clone)]
pub struct WebhookConfig {
    /// `WEBHOOK_SECRET`: the keys that sign; two while one is being replaced.
    secrets: Vec<Vec<u8>>,
    /// `WEBHOOK_ALLOWED_HOSTS`; `None`: any public host.
    allowed_hosts: Option<Vec<String>>,
    /// `WEBHOOK_ALLOW_HTTP`.
    allow_http: bool,
    /// `WEBHOOK_ALLOW_PRIVATE`.
    allow_private: bool,
    /// `WEBHOOK_TIMEOUT_MS`.
    timeout: Duration,
}

impl WebhookConfig {
    /// Reads and checks the variables; `None` when `WEBHOOK_ALLOWED_HOSTS` is empty, which turns webhooks off.
    pub fn read(environment: &Environment<'_>) -> Result<Option<Self>, WrongVariable> {
        let allow_http = environment.flag("WEBHOOK_ALLOW_HTTP")?;
        let allow_private = environment.flag("WEBHOOK_ALLOW_PRIVATE")?;
        let timeout = Duration::from_millis(environment.number("WEBHOOK_TIMEOUT_MS", 10_000, 1, 600_000)?);
        let secrets = environment.text("WEBHOOK_SECRET").map(|text| read_secrets(&text)).transpose()?;
        let Some(hosts) = environment.text("WEBHOOK_ALLOWED_HOSTS") else {
            return Ok(None);
        };
        let Some(secrets) = secrets else {
            return Err(WrongVariable { name: "WEBHOOK_SECRET", reason: "must be set".to_owned() });
        };
        let hosts: Vec<String> = hosts.split(',').map(|host| host.trim().to_ascii_lowercase()).collect();
        let allowed_hosts = (!hosts.iter().any(|host| host == "*")).then_some(hosts);
        Ok(Some(Self { secrets, allowed_hosts, allow_http, allow_private, timeout }))
    }
}

fn read_secrets(text: &str) -> Result<Vec<Vec<u8>>, WrongVariable> {
    // The reason must not repeat the secret.
    let wrong = || WrongVariable {
        name: "WEBHOOK_SECRET",
        reason: "must be whsec_ and base64 of 24 to 64 bytes, or two of them separated by a space".to_owned(),
    };
    let secrets: Vec<Vec<u8>> = text
        .split_ascii_whitespace()
        .map(|secret| STANDARD.decode(secret.strip_prefix("whsec_")?).ok())
        .map(|key| key.filter(|key| (24..=64).contains(&key.len())).ok_or_else(wrong))
        .collect::<Result<_, _>>()?;
    if (1..=2).contains(&secrets.len()) { Ok(secrets) } else { Err(wrong()) }
}

/// The task's `parameters`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    url: String,
    headers: Option<BTreeMap<String, String>>,
    /// Sent to the byte as it was added; `null` when left out.
    body: Option<Box<RawValue>>,
}

/// Posts `body` to `url`.
pub struct Webhook {
    config: WebhookConfig,
    client: Client,
}

impl Webhook {
    /// A handler with a connection pool of its own.
    pub fn new(config: WebhookConfig) -> Result<Self, reqwest::Error> {
        let mut client = Client::builder()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")));
        if !config.allow_private {
            client = client.dns_resolver(Arc::new(PublicResolver));
        }
        Ok(Self { client: client.build()?, config })
    }

    /// Checks where a webhook goes. Names are checked again when they are resolved, by the resolver.
    fn checked_url(&self, url: &str) -> Result<Url, HandlerError> {
        let refuse = |reason: &str| Err(HandlerError::permanent(format!("url {reason}")));
        let Ok(url) = Url::parse(url) else {
            return refuse("is not a URL");
        };
        match url.scheme() {
            "https" => {}
            "http" if self.config.allow_http => {}
            "http" => return refuse("must be https"),
            _ => return refuse("must be http or https"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("must not hold a user or a password");
        }
        let host =
            url.host_str().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        if self.config.allowed_hosts.as_ref().is_some_and(|allowed| !allowed.contains(&host)) {
            return refuse("leads to a host that is not allowed");
        }
        // An address in the URL is not resolved, so the resolver never sees it.
        if let Ok(address) = host.parse::<IpAddr>()
            && !self.config.allow_private
            && !is_public(address)
        {
            return refuse("leads to an address that is not public");
        }
        Ok(url)
    }

    /// `v1,<signature>` by every active secret, over `id.timestamp.body`.
    fn signatures(&self, id: &str, timestamp: i64, body: &str) -> String {
        let sign = |secret: &Vec<u8>| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body.as_bytes());
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        self.config.secrets.iter().map(sign).collect::<Vec<_>>().join(" ")
    }

    fn headers(&self, parameters: &Parameters, body: &str, context: &Context) -> Result<HeaderMap, HandlerError> {
        let mut headers = HeaderMap::new();
        for (name, value) in parameters.headers.iter().flatten() {
            let lower = name.to_ascii_lowercase();
            if lower.starts_with("webhook-") || RESERVED_HEADERS.contains(&lower.as_str()) {
                return Err(HandlerError::permanent(format!("the header {name} is set by the service")));
            }
            let named = HeaderName::try_from(lower);
            let (Ok(named), Ok(value)) = (named, HeaderValue::from_str(value)) else {
                return Err(HandlerError::permanent(format!("the header {name} is not a valid one")));
            };
            headers.insert(named, value);
        }
        let timestamp = context.now.as_ms().div_euclid(1_000);
        for (name, value) in [
            ("content-type", "application/json".to_owned()),
            ("webhook-id", context.task_id.clone()),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-signature", self.signatures(&context.task_id, timestamp, body)),
            ("webhook-attempt", context.attempt.to_string()),
        ] {
            let value = HeaderValue::from_str(&value).expect("ids, numbers and base64 are valid in headers");
            headers.insert(HeaderName::from_static(name), value);
        }
        Ok(headers)
    }
}

impl Handler for Webhook {
    const NAME: &'static str = "webhook";
    type Parameters = Parameters;

    async fn handle(&self, parameters: Parameters, context: &Context) -> Result<(), HandlerError> {
        let url = self.checked_url(&parameters.url)?;
        let body = parameters.body.as_deref().unwrap_or(RawValue::NULL).get();
        let headers = self.headers(&parameters, body, context)?;
        let sent = self.client.post(url).headers(headers).body(body.to_owned()).send().await;
        match sent {
            Ok(response) => judge(&response),
            Err(error) => {
                // The URL may hold a secret in its query, so the reason is told without it.
                let error = error.without_url();
                let causes: Vec<String> =
                    std::iter::successors(error.source(), |e| (*e).source()).map(ToString::to_string).collect();
                Err(HandlerError::retry(format!("{error}: {}", causes.join(": "))))
            }
        }
    }
}

/// What the receiver's answer means: 2xx is done; 4xx is a refusal for good but for those that say 'later'; the rest,
/// redirects among them, is tried again.
fn judge(response: &Response) -> Result<(), HandlerError> {
    let status = response.status();
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let reason = format!("the receiver answered {status}");
    if status.is_success() {
        return Ok(());
    }
    if status.is_client_error() && !later {
        return Err(HandlerError::Permanent { reason });
    }
    Err(HandlerError::Retry { after: retry_after(response.headers(), SystemTime::now()), reason })
}

/// The pause that `Retry-After` asks for, as seconds or as a date, at most [`MAX_RETRY_AFTER`].
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or(Duration::ZERO),
    };
    Some(pause.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn webhook(variables: &[(&str, &str)]) -> Webhook {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let config = WebhookConfig::read(&Environment(&lookup)).expect("valid").expect("on");
        Webhook::new(config).expect("a client")
    }

    #[test]
    fn webhooks_are_off_without_allowed_hosts_and_need_a_secret() {
        let read = |hosts: &str, secret: &str| {
            let lookup = |name: &str| match name {
                "WEBHOOK_ALLOWED_HOSTS" => Some(hosts.to_owned()),
                "WEBHOOK_SECRET" => Some(secret.to_owned()),
                _ => None,
            };
            WebhookConfig::read(&Environment(&lookup)).map(|config| config.is_some())
        };
        assert_eq!(read(" ", ""), Ok(false));
        assert_eq!(read("*", SECRET), Ok(true));
        assert_eq!(read("*", &format!("{SECRET} {SECRET}")), Ok(true));
        for wrong in ["", "plain", "whsec_", "whsec_AAAA", &format!("{SECRET} {SECRET} {SECRET}")] {
            assert_eq!(read("*", wrong).expect_err(wrong).name, "WEBHOOK_SECRET");
        }
    }

    #[test]
    fn a_url_is_checked_before_anything_is_sent() {
        let strict = webhook(&[("WEBHOOK_ALLOWED_HOSTS", "*"), ("WEBHOOK_SECRET", SECRET)]);
        assert!(strict.checked_url("https://example.com/hook").is_ok());
        for refused in [
            "nonsense",
            "http://example.com/",
            "ftp://example.com/",
            "https://user:pass@example.com/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://169.254.169.254/latest/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://[::ffff:10.0.0.1]/",
        ] {
            assert!(matches!(strict.checked_url(refused), Err(HandlerError::Permanent { .. })), "{refused}");
        }
        let listed = webhook(&[("WEBHOOK_ALLOWED_HOSTS", "a.example, b.example"), ("WEBHOOK_SECRET", SECRET)]);
        assert!(listed.checked_url("https://B.example./x").is_ok());
        assert!(listed.checked_url("https://a.example.evil/").is_err());
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(value).expect(value))]);
            retry_after(&headers, SystemTime::UNIX_EPOCH)
        };
        assert_eq!(of("120"), Some(Duration::from_secs(120)));
        assert_eq!(of("Thu, 01 Jan 1970 00:01:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(of("99999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(of("-1"), None);
        assert_eq!(of("soon"), None);
    }
}
