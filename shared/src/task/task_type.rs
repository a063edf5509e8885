//! Task types: integers or names.

use serde::Serialize;

use super::MAX_NAME_LENGTH;

/// A task type as the caller wrote it: an integer or a name. `7` and `"7"` are one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskType {
    name: String,
    sent_as_number: bool,
}

impl TaskType {
    /// A type written as a JSON string. Fails when it is not `[A-Za-z0-9_.-]{1,64}`, or is `.` or `..`.
    pub fn from_name(name: &str) -> Result<Self, &'static str> {
        let fits = (1..=MAX_NAME_LENGTH).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
            && name != "."
            && name != "..";
        if !fits {
            return Err("must be an integer or 1 to 64 of the characters A-Z a-z 0-9 _ . -, and not . or ..");
        }
        Ok(Self { name: name.to_owned(), sent_as_number: false })
    }

    /// A type written as a JSON integer.
    pub fn from_number(number: i64) -> Self {
        Self { name: number.to_string(), sent_as_number: true }
    }

    /// A type as the table keeps it.
    pub fn from_stored(name: String, sent_as_number: bool) -> Self {
        Self { name, sent_as_number }
    }

    /// The type's name, the same for `7` and `"7"`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the caller wrote it as a JSON integer.
    pub fn sent_as_number(&self) -> bool {
        self.sent_as_number
    }
}

impl Serialize for TaskType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name.parse::<i64>() {
            Ok(number) if self.sent_as_number => serializer.serialize_i64(number),
            _ => serializer.serialize_str(&self.name),
        }
    }
}

/// A queue name for listings: an integer where the name is one, whoever wrote it.
pub struct ListedType<'a>(pub &'a str);

impl Serialize for ListedType<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.parse::<i64>() {
            Ok(number) if number.to_string() == self.0 => serializer.serialize_i64(number),
            _ => serializer.serialize_str(self.0),
        }
    }
}
