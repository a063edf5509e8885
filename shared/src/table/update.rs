//! Builds one conditional update. Every name goes through a placeholder, so no reserved word is ever met.

use aws_sdk_dynamodb::types::AttributeValue;

use super::item::Item;

/// An update expression with its condition, names and values.
#[derive(Default)]
pub struct Update {
    set: Vec<String>,
    remove: Vec<String>,
    condition: String,
    names: Vec<(String, String)>,
    values: Item,
}

/// An [`Update`] in DynamoDB's terms.
pub struct Expressions {
    /// `SET ... REMOVE ...`
    pub update: String,
    /// The condition.
    pub condition: String,
    /// `#name` -> name.
    pub names: std::collections::HashMap<String, String>,
    /// `:value` -> value.
    pub values: Item,
}

impl Update {
    /// An update that takes place only where `condition` holds. Names in it are written `#name`, values `:value`;
    /// each must be told by [`Update::name`] or [`Update::value`] unless the update itself uses it.
    pub fn only_if(condition: impl Into<String>) -> Self {
        Self { condition: condition.into(), ..Self::default() }
    }

    /// Tells the condition's name `#name`.
    pub fn name(mut self, name: &'static str) -> Self {
        self.names.push((format!("#{name}"), name.to_owned()));
        self
    }

    /// Tells the value `:key`.
    pub fn value(mut self, key: &str, value: AttributeValue) -> Self {
        self.values.insert(format!(":{key}"), value);
        self
    }

    /// Sets `name` to `value`.
    pub fn set(self, name: &'static str, value: AttributeValue) -> Self {
        let mut update = self.name(name).value(name, value);
        update.set.push(format!("#{name} = :{name}"));
        update
    }

    /// Sets `name` to the sum of the attribute `other` and `value`.
    pub fn set_sum(self, name: &'static str, other: &'static str, value: AttributeValue) -> Self {
        let mut update = self.name(name).name(other).value(name, value);
        update.set.push(format!("#{name} = #{other} + :{name}"));
        update
    }

    /// Removes `name`.
    pub fn remove(self, name: &'static str) -> Self {
        let mut update = self.name(name);
        update.remove.push(format!("#{name}"));
        update
    }

    /// The expressions to send.
    pub fn into_expressions(self) -> Expressions {
        let clause = |word: &str, parts: &[String]| match parts {
            [] => String::new(),
            _ => format!("{word} {} ", parts.join(", ")),
        };
        Expressions {
            update: clause("SET", &self.set) + &clause("REMOVE", &self.remove),
            condition: self.condition,
            names: self.names.into_iter().collect(),
            values: self.values,
        }
    }
}
