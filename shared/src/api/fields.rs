//! Reading a JSON object field by field, so that each error names its field.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::Error;
use crate::time::{LAST_TIMESTAMP, SMALLEST_EPOCH_MS, Timestamp, parse_iso8601_duration_ms};

/// The fields of an object, each as its raw JSON. A field that is `null` counts as left out.
pub struct Fields<'a>(BTreeMap<String, &'a RawValue>);

struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if members.insert(name.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("the field {name} is given twice")));
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Reader).map(Members)
    }
}

impl<'a> Fields<'a> {
    /// Reads the object `json`, called `what` in errors; an empty text is `{}`. Fields outside `known` are refused.
    pub fn read(what: &str, json: &'a str, known: &[&str]) -> Result<Self, Error> {
        let json = if json.trim_ascii().is_empty() { "{}" } else { json };
        let Members(mut members) = serde_json::from_str(json)
            .map_err(|error| Error::invalid(what, format!("must be a JSON object: {error}")))?;
        if let Some(unknown) = members.keys().find(|name| !known.contains(&name.as_str())) {
            let shown: String = unknown.chars().take(100).collect();
            let reason = match known {
                [] => "is not a field here; there are none".to_owned(),
                _ => format!("is not a field here; the fields are {}", known.join(", ")),
            };
            return Err(Error::invalid(shown, reason));
        }
        members.retain(|_, value| value.get() != "null");
        Ok(Self(members))
    }

    /// The raw JSON of a field.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    /// A field of a type that serde reads, described by `wanted` in the error.
    pub fn value<T: DeserializeOwned>(&self, name: &str, wanted: &str) -> Result<Option<T>, Error> {
        self.raw(name).map(|raw| serde_json::from_str(raw.get()).map_err(|_| Error::invalid(name, wanted))).transpose()
    }

    /// A text field that must be there.
    pub fn required_text(&self, name: &str) -> Result<String, Error> {
        self.value(name, "must be a string")?.ok_or_else(|| Error::invalid(name, "is required"))
    }

    /// An integer from `least` to `most`.
    pub fn integer(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, Error> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        parse_whole_number(name, raw.get(), least, most).map(Some)
    }

    /// A span of time in milliseconds: an integer, or an ISO 8601 duration as text; not negative.
    pub fn delay_ms(&self, name: &str) -> Result<Option<i64>, Error> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        if raw.get().starts_with('"') {
            let text: String = self.value(name, "must be a string")?.unwrap_or_default();
            return parse_iso8601_duration_ms(&text).map(Some).map_err(|reason| Error::invalid(name, reason));
        }
        self.integer(name, 0, LAST_TIMESTAMP.as_ms())
    }
}

/// An integer written in JSON or in a query, from `least` to `most`.
pub fn parse_whole_number(name: &str, text: &str, least: i64, most: i64) -> Result<i64, Error> {
    match text.parse::<i64>() {
        Ok(number) if (least..=most).contains(&number) && !text.starts_with('+') => Ok(number),
        _ => Err(Error::invalid(name, format!("must be an integer from {least} to {most}"))),
    }
}

/// A due time: epoch milliseconds, or an RFC 3339 text.
pub fn parse_execute_time(raw: &RawValue) -> Result<Timestamp, Error> {
    const NAME: &str = "executeTime";
    if raw.get().starts_with('"') {
        let text: String = serde_json::from_str(raw.get()).map_err(|_| Error::invalid(NAME, "must be a string"))?;
        return Timestamp::parse_rfc3339(&text).map_err(|reason| Error::invalid(NAME, reason));
    }
    let ms = raw
        .get()
        .parse::<i64>()
        .map_err(|_| Error::invalid(NAME, "must be an integer of epoch milliseconds, or an RFC 3339 date and time"))?;
    if ms < SMALLEST_EPOCH_MS {
        let reason = format!("must be in milliseconds since 1970, not in seconds: at least {SMALLEST_EPOCH_MS}");
        return Err(Error::invalid(NAME, reason));
    }
    if ms > LAST_TIMESTAMP.as_ms() {
        return Err(Error::invalid(NAME, format!("must be at most {} (the year 9999)", LAST_TIMESTAMP.as_ms())));
    }
    Ok(Timestamp::from_ms(ms))
}
