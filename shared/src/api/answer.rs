//! The envelope around every answer, and the answer as API Gateway takes it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::Error;

/// What a call answers: an HTTP status and the JSON behind `data`.
#[derive(Clone, Debug)]
pub struct Envelope {
    status: u16,
    data: Box<RawValue>,
    created: Option<bool>,
}

impl Envelope {
    /// A 200 with `data`.
    pub fn ok(data: &impl Serialize) -> Result<Self, Error> {
        let data = serde_json::value::to_raw_value(data).map_err(|error| Error::Internal(error.into()))?;
        Ok(Self { status: 200, data, created: None })
    }

    /// The same with `created` beside `data`.
    pub fn with_created(self, created: bool) -> Self {
        Self { created: Some(created), ..self }
    }

    /// The same with another status.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    code: u16,
    error_message: Option<String>,
    data: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<bool>,
}

/// An answer in the shape that both kinds of API Gateway event want.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The HTTP status.
    pub status_code: u16,
    /// The headers.
    pub headers: BTreeMap<&'static str, String>,
    /// The envelope's JSON.
    pub body: String,
    is_base64_encoded: bool,
}

impl Answer {
    /// The answer to a call; `data_on_error` is what stands behind `data` of an error. Errors are mapped here and
    /// nowhere else.
    pub fn new(outcome: &Result<Envelope, Error>, data_on_error: &RawValue) -> Self {
        let mut headers = BTreeMap::from([("content-type", "application/json".to_owned())]);
        let (status, body) = match outcome {
            Ok(envelope) => {
                let body = Body {
                    code: envelope.status,
                    error_message: None,
                    data: &envelope.data,
                    error: None,
                    created: envelope.created,
                };
                (envelope.status, serde_json::to_string(&body))
            }
            Err(error) => {
                match error {
                    Error::MethodNotAllowed(allowed) => headers.insert("allow", (*allowed).to_owned()),
                    Error::Throttled(_) | Error::Unavailable(_) | Error::TooSlow | Error::RedisUnavailable(_) => {
                        headers.insert("retry-after", "1".to_owned())
                    }
                    _ => None,
                };
                let body = Body {
                    code: error.status(),
                    error_message: Some(error.to_string()),
                    data: data_on_error,
                    error: Some(error.word()),
                    created: None,
                };
                (error.status(), serde_json::to_string(&body))
            }
        };
        Self {
            status_code: status,
            headers,
            body: body.expect("the envelope has only texts, numbers and JSON"),
            is_base64_encoded: false,
        }
    }
}
