//! The task object that add takes, checked.

use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::fields::{Fields, parse_execute_time, parse_whole_number};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::service::Addition;
use crate::task::{Content, DEFAULT_MAX_ATTEMPTS, MAX_NAME_LENGTH, MAX_PARAMETERS_BYTES, TaskType, check_task_id};
use crate::time::{LAST_TIMESTAMP, Timestamp};

/// The fields of a task object.
const FIELDS: [&str; 11] = [
    "taskId",
    "taskType",
    "priority",
    "executeTime",
    "delay",
    "parameters",
    "handler",
    "maxAttempts",
    "backoff",
    "retention",
    "timeout",
];
/// The longest retention: ten years, in milliseconds.
const MAX_RETENTION_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1000;
/// The longest time limit of a handler: 10 minutes, in milliseconds. With the longest shift before it, it ends within
/// the 15 minutes that a Lambda function may run.
const MAX_TIMEOUT_MS: i64 = 10 * 60 * 1000;

/// What a task object is read with.
#[derive(Clone, Copy, Debug)]
pub struct NewTask {
    /// Now: what a `delay` counts from.
    pub now: Timestamp,
    /// The retention of a task that names none, in milliseconds.
    pub retention_ms: i64,
}

/// Reads one task object.
pub fn parse_addition(json: &str, new: NewTask) -> Result<Addition, Error> {
    let fields = Fields::read("task", json, &FIELDS)?;
    let (execute_time, due_as_sent) = due_time(&fields, new.now)?;
    let task_type = fields.raw("taskType").ok_or_else(|| Error::invalid("taskType", "is required"))?;
    let parameters = fields.raw("parameters");
    if parameters.is_some_and(|raw| raw.get().len() > MAX_PARAMETERS_BYTES) {
        return Err(Error::TooLarge { field: "parameters", limit_bytes: MAX_PARAMETERS_BYTES });
    }
    let backoff = match fields.raw("backoff") {
        Some(raw) => parse_backoff(raw)?,
        None => Backoff::default(),
    };
    backoff.check().map_err(|reason| Error::invalid("backoff", reason))?;
    let small = |name, least, most, default: i64| Ok::<_, Error>(fields.integer(name, least, most)?.unwrap_or(default));
    let retention = fields.integer("retention", 0, MAX_RETENTION_MS)?;
    let content = Content {
        task_type: parse_task_type(task_type)?,
        priority: u8::try_from(small("priority", 0, 255, 0)?).expect("checked to be at most 255"),
        parameters: parameters.map(ToOwned::to_owned),
        handler: fields.value("handler", "must be a string")?.map(parse_handler).transpose()?,
        max_attempts: u32::try_from(small("maxAttempts", 1, 1_000, i64::from(DEFAULT_MAX_ATTEMPTS))?)
            .expect("checked to be at most 1000"),
        backoff,
        retention_ms: retention.unwrap_or(new.retention_ms),
        timeout_ms: fields.integer("timeout", 1, MAX_TIMEOUT_MS)?,
    };
    Ok(Addition {
        id: fields.raw("taskId").map(parse_task_id).transpose()?,
        execute_time,
        digest: digest(&content, &due_as_sent, retention),
        content,
    })
}

/// The due time, and how it was told: a repeated add with the same `delay` is the same add.
fn due_time(fields: &Fields<'_>, now: Timestamp) -> Result<(Timestamp, String), Error> {
    match (fields.raw("executeTime"), fields.delay_ms("delay")?) {
        (Some(raw), None) => {
            let due = parse_execute_time(raw)?;
            Ok((due, format!("at {}", due.as_ms())))
        }
        (None, Some(delay_ms)) => {
            let due = now.plus_ms(delay_ms);
            if due > LAST_TIMESTAMP {
                return Err(Error::invalid("delay", "must not lead beyond the year 9999"));
            }
            Ok((due, format!("in {delay_ms}")))
        }
        (Some(_), Some(_)) => Err(Error::invalid("delay", "must not be given together with executeTime")),
        (None, None) => Err(Error::invalid("executeTime", "or delay is required")),
    }
}

/// Fields that are `null` count as left out here too.
fn parse_backoff(raw: &RawValue) -> Result<Backoff, Error> {
    let invalid = |error: serde_json::Error| Error::invalid("backoff", error.to_string());
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(raw.get()).map_err(invalid)?;
    fields.retain(|_, value| !value.is_null());
    serde_json::from_value(Value::Object(fields)).map_err(invalid)
}

/// Reads a task type: an integer or a name.
pub fn parse_task_type(raw: &RawValue) -> Result<TaskType, Error> {
    const NAME: &str = "taskType";
    if raw.get().starts_with('"') {
        let name: String = serde_json::from_str(raw.get()).map_err(|_| Error::invalid(NAME, "must be a string"))?;
        return TaskType::from_name(&name).map_err(|reason| Error::invalid(NAME, reason));
    }
    parse_whole_number(NAME, raw.get(), i64::MIN, i64::MAX).map(TaskType::from_number)
}

fn parse_task_id(raw: &RawValue) -> Result<String, Error> {
    const NAME: &str = "taskId";
    let id = if raw.get().starts_with('"') {
        serde_json::from_str(raw.get()).map_err(|_| Error::invalid(NAME, "must be a string"))?
    } else {
        let digits = raw.get().strip_prefix('-').unwrap_or(raw.get());
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Error::invalid(NAME, "must be a string or an integer"));
        }
        raw.get().to_owned()
    };
    check_task_id(&id).map_err(|reason| Error::invalid(NAME, reason))?;
    Ok(id)
}

fn parse_handler(name: String) -> Result<String, Error> {
    let fits = (1..=MAX_NAME_LENGTH).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if fits { Ok(name) } else { Err(Error::invalid("handler", "must be 1 to 64 of the characters A-Z a-z 0-9 _ . -")) }
}

/// Equal for equal content. Each part is preceded by its length, so that no two contents run into one text.
fn digest(content: &Content, due_as_sent: &str, retention: Option<i64>) -> String {
    use base64::Engine;
    let backoff = serde_json::to_string(&content.backoff).expect("a checked backoff has only finite numbers");
    let or_none = |number: Option<i64>| number.map_or_else(String::new, |n| n.to_string());
    let mut hash = Sha256::new();
    for part in [
        content.task_type.name(),
        &content.priority.to_string(),
        due_as_sent,
        content.parameters.as_ref().map_or("null", |raw| raw.get()),
        content.handler.as_deref().unwrap_or_default(),
        &content.max_attempts.to_string(),
        &backoff,
        &or_none(retention),
        &or_none(content.timeout_ms),
    ] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: NewTask = NewTask { now: Timestamp::from_ms(1_800_000_000_000), retention_ms: 604_800_000 };

    fn refused(json: &str) -> String {
        parse_addition(json, NEW).expect_err(json).to_string()
    }

    fn task(field: &str) -> String {
        format!(r#"{{"taskType":"t","delay":0,{field}}}"#)
    }

    #[test]
    fn a_whole_task_object_is_read() {
        let json = r#"{"taskId":300000000,"taskType":7,"priority":3,"executeTime":"2030-01-31T18:00:00Z",
            "parameters": {"id":130775545883395173, "a":[], "f":1.0} ,"handler":null,"maxAttempts":9,
            "backoff":{"kind":"list","delays":[1,2]},"retention":1000,"timeout":5}"#;
        let addition = parse_addition(json, NEW).expect("valid");
        assert_eq!(addition.id.as_deref(), Some("300000000"));
        assert_eq!(addition.execute_time.as_ms(), 1_896_112_800_000);
        let content = addition.content;
        assert_eq!(content.task_type, TaskType::from_number(7));
        assert_eq!((content.priority, content.max_attempts), (3, 9));
        let parameters = content.parameters.expect("sent");
        assert_eq!(parameters.get(), r#"{"id":130775545883395173, "a":[], "f":1.0}"#);
        assert_eq!((content.retention_ms, content.timeout_ms, content.handler), (1_000, Some(5), None));
    }

    #[test]
    fn each_bad_field_is_named() {
        for (field, json) in [
            ("executeTime", r#"{"taskType":"t"}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":1700000000}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":-1}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":0}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":1800000000000.5}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":253402300800000}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":99999999999999999999}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":"soon"}"#.to_owned()),
            ("executeTime", r#"{"taskType":"t","executeTime":[]}"#.to_owned()),
            ("delay", r#"{"taskType":"t","executeTime":1800000000000,"delay":1}"#.to_owned()),
            ("delay", r#"{"taskType":"t","delay":-1}"#.to_owned()),
            ("delay", r#"{"taskType":"t","delay":253402300799999}"#.to_owned()),
            ("delay", r#"{"taskType":"t","delay":"P1M"}"#.to_owned()),
            ("taskType", r#"{"delay":0}"#.to_owned()),
            ("taskType", r#"{"delay":0,"taskType":"a:b"}"#.to_owned()),
            ("taskType", r#"{"delay":0,"taskType":1.5}"#.to_owned()),
            ("taskType", r#"{"delay":0,"taskType":true}"#.to_owned()),
            ("taskId", task(r#""taskId":"a/b""#)),
            ("taskId", task(r#""taskId":"..""#)),
            ("taskId", task(r#""taskId":"""#)),
            ("taskId", task(r#""taskId":1.5"#)),
            ("taskId", task(r#""taskId":{}"#)),
            ("priority", task(r#""priority":256"#)),
            ("priority", task(r#""priority":-1"#)),
            ("priority", task(r#""priority":"1""#)),
            ("maxAttempts", task(r#""maxAttempts":0"#)),
            ("maxAttempts", task(r#""maxAttempts":1001"#)),
            ("backoff", task(r#""backoff":{"kind":"never"}"#)),
            ("backoff", task(r#""backoff":["list",[1]]"#)),
            ("backoff", task(r#""backoff":{"kind":"fixed","delay":-1}"#)),
            ("backoff", task(r#""backoff":{"kind":"list","delays":[]}"#)),
            ("backoff", task(r#""backoff":{"kind":"fixed","delay":1,"speed":2}"#)),
            ("retention", task(r#""retention":-1"#)),
            ("timeout", task(r#""timeout":0"#)),
            ("handler", task(r#""handler":"a b""#)),
            ("excuteTime", task(r#""excuteTime":1"#)),
            ("task", "[]".to_owned()),
            ("task", "{".to_owned()),
            ("task", task(r#""priority":1,"priority":2"#)),
        ] {
            assert!(refused(&json).starts_with(&format!("{field}: ")), "{json}: {}", refused(&json));
        }
    }

    #[test]
    fn the_parameters_limit_is_on_raw_bytes() {
        let of = |bytes: usize| task(&format!(r#""parameters":"{}""#, "x".repeat(bytes - 2)));
        assert!(parse_addition(&of(MAX_PARAMETERS_BYTES), NEW).is_ok());
        let error = parse_addition(&of(MAX_PARAMETERS_BYTES + 1), NEW).expect_err("too long");
        assert_eq!((error.status(), error.to_string().contains("262144")), (413, true));
    }

    #[test]
    fn equal_content_has_an_equal_digest_and_other_content_another() {
        let digest = |json: &str| parse_addition(json, NEW).expect(json).digest;
        let plain = r#"{"taskType":7,"delay":60000}"#;
        assert_eq!(digest(plain), digest(r#"{"delay":"PT1M","taskType":"7","priority":0,"handler":null}"#));
        for other in [
            r#"{"taskType":7,"delay":60001}"#,
            r#"{"taskType":7,"executeTime":1800000060000}"#,
            r#"{"taskType":8,"delay":60000}"#,
            r#"{"taskType":7,"delay":60000,"parameters":{}}"#,
            r#"{"taskType":7,"delay":60000,"handler":"webhook"}"#,
            r#"{"taskType":7,"delay":60000,"maxAttempts":6}"#,
            r#"{"taskType":7,"delay":60000,"priority":1}"#,
        ] {
            assert_ne!(digest(plain), digest(other), "{other}");
        }
    }
}
