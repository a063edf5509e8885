//! What `template.yaml` says: which function serves which route, what runs on a schedule, which variables each
//! function is given, and what the table looks like.

mod table;
mod value;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_norway::Value;
use thiserror::Error;

pub use table::{AttributeDefinition, IndexDefinition, KeyPart, ProjectionDefinition, TableDefinition, TtlDefinition};
use value::{at, members, resolve, text_at};

/// The template that this program was built with.
pub const TEXT: &str = include_str!("../../../template.yaml");

/// Variables by name, with their values where these are known without a deployment.
pub type Variables = BTreeMap<String, Option<String>>;

/// A template that cannot be read.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// It is not YAML, or a part has not the shape that CloudFormation wants.
    #[error("template.yaml: {0}")]
    Yaml(#[from] serde_norway::Error),
    /// A part is missing or not understood.
    #[error("template.yaml: {place}: {reason}")]
    Part {
        /// Where it is.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

/// What the runner needs to know of the template.
#[derive(Clone, Debug)]
pub struct Template {
    /// The variables that every function is given.
    pub globals: Variables,
    /// The functions, in the template's order.
    pub functions: Vec<FunctionDefinition>,
    /// The one table.
    pub table: TableDefinition,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionDefinition {
    /// The name of its binary, or else its logical id.
    pub name: String,
    /// The variables that it is given, the template's globals included.
    pub variables: Variables,
    /// The routes that it serves.
    pub routes: Vec<Route>,
    /// How often it runs by itself.
    pub schedules: Vec<Duration>,
}

/// A route of the HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// A method in capitals, or `ANY`.
    pub method: String,
    /// A path with `{variables}`.
    pub path: String,
}

impl Template {
    /// Reads the template that this program was built with.
    pub fn embedded() -> Result<Self, TemplateError> {
        Self::parse(TEXT)
    }

    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let template: Value = serde_norway::from_str(text)?;
        let globals = variables(&template, &["Globals", "Function", "Environment", "Variables"], &template);
        let (mut functions, mut table) = (Vec::new(), None);
        for (id, resource) in members(&template, &["Resources"]) {
            match text_at(resource, &["Type"]) {
                Some("AWS::Serverless::Function") => functions.push(function(id, resource, &globals, &template)?),
                Some("AWS::DynamoDB::Table") if table.is_none() => {
                    let properties = at(resource, &["Properties"]).cloned().unwrap_or_default();
                    table = Some(serde_norway::from_value(properties)?);
                }
                Some("AWS::DynamoDB::Table") => return Err(wrong(id, "there is a table already")),
                _ => {}
            }
        }
        let table = table.ok_or_else(|| wrong("Resources", "there is no AWS::DynamoDB::Table"))?;
        Ok(Self { globals, functions, table })
    }

    /// The function with this name.
    pub fn function(&self, name: &str) -> Option<&FunctionDefinition> {
        self.functions.iter().find(|function| function.name == name)
    }
}

fn variables(part: &Value, path: &[&str], template: &Value) -> Variables {
    members(part, path).map(|(name, value)| (name.to_owned(), resolve(value, template))).collect()
}

fn function(
    id: &str,
    resource: &Value,
    globals: &Variables,
    template: &Value,
) -> Result<FunctionDefinition, TemplateError> {
    let name = text_at(resource, &["Metadata", "BuildProperties", "Binary"]).unwrap_or(id).to_owned();
    let mut variables = variables(resource, &["Properties", "Environment", "Variables"], template);
    for (name, value) in globals {
        variables.entry(name.clone()).or_insert_with(|| value.clone());
    }
    let (mut routes, mut schedules) = (Vec::new(), Vec::new());
    for (event_id, event) in members(resource, &["Properties", "Events"]) {
        let place = format!("{id}.{event_id}");
        let property = |name: &str| {
            text_at(event, &["Properties", name]).ok_or_else(|| wrong(&place, &format!("{name} must be a text")))
        };
        match text_at(event, &["Type"]) {
            Some("HttpApi") => {
                let method = property("Method")?.to_ascii_uppercase();
                routes.push(Route { method, path: property("Path")?.to_owned() });
            }
            Some("ScheduleV2") => schedules.push(rate(property("ScheduleExpression")?, &place)?),
            Some("Schedule") => schedules.push(rate(property("Schedule")?, &place)?),
            other => return Err(wrong(&place, &format!("the runner knows no events of type {other:?}"))),
        }
    }
    Ok(FunctionDefinition { name, variables, routes, schedules })
}

/// Reads `rate(5 minutes)`.
fn rate(expression: &str, place: &str) -> Result<Duration, TemplateError> {
    let parts = expression.strip_prefix("rate(").and_then(|rest| rest.strip_suffix(')')?.split_once(' '));
    let unit_seconds = parts.and_then(|(_, unit)| match unit.trim().trim_end_matches('s') {
        "minute" => Some(60),
        "hour" => Some(3_600),
        "day" => Some(86_400),
        _ => None,
    });
    let number: Option<u32> = parts.and_then(|(number, _)| number.parse().ok()).filter(|number| *number > 0);
    match (number, unit_seconds) {
        (Some(number), Some(seconds)) => Ok(Duration::from_secs(u64::from(number) * seconds)),
        _ => Err(wrong(place, &format!("the runner knows schedules like rate(1 minute), not {expression}"))),
    }
}

fn wrong(place: &str, reason: &str) -> TemplateError {
    TemplateError::Part { place: place.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template::embedded().expect("the template is readable")
    }

    #[test]
    fn the_functions_have_their_routes_and_schedules() {
        let template = template();
        let routes = |name: &str| -> Vec<String> {
            let function = template.function(name).expect(name);
            function.routes.iter().map(|route| format!("{} {}", route.method, route.path)).collect()
        };
        assert_eq!(routes("add"), ["ANY /api/v1/task/add"]);
        assert_eq!(routes("cancel"), ["ANY /api/v1/task/cancel/{taskId}"]);
        assert!(routes("inspect").contains(&"ANY /health".to_owned()));
        for tick in ["refresh", "recover"] {
            let function = template.function(tick).expect(tick);
            assert_eq!((function.routes.len(), &function.schedules[..]), (0, &[Duration::from_secs(60)][..]));
        }
    }

    #[test]
    fn variables_resolve_to_parameter_defaults_and_the_rest_is_left_to_the_runner() {
        let template = template();
        let variables = &template.function("refresh").expect("refresh").variables;
        let value = |name: &str| variables.get(name).expect(name).as_deref();
        assert_eq!(value("WINDOW_SECONDS"), Some("300"));
        assert_eq!(value("INDEX_SHARDS"), Some("16"));
        assert_eq!(value("TICK_SECONDS"), Some("40"));
        assert_eq!(value("TABLE_NAME"), None);
        assert_eq!(value("REDIS_URL"), None);
        assert!(!template.function("add").expect("add").variables.contains_key("TICK_SECONDS"));
    }

    #[test]
    fn the_table_is_the_one_that_the_core_reads_and_writes() {
        use punctual_core::table::attributes::{BUCKET, INDEX, LANE, TASK_ID, WAKE};
        let table = template().table;
        let part = |name: &str, key_type: &str| KeyPart { attribute_name: name.into(), key_type: key_type.into() };
        assert_eq!(table.billing_mode, "PAY_PER_REQUEST");
        assert_eq!(table.key_schema, [part(TASK_ID, "HASH")]);
        let [index] = &table.global_secondary_indexes[..] else { panic!("one index") };
        assert_eq!(index.index_name, INDEX);
        assert_eq!(index.key_schema, [part(BUCKET, "HASH"), part(WAKE, "RANGE")]);
        assert_eq!(index.projection.projection_type, "INCLUDE");
        assert_eq!(index.projection.non_key_attributes, [LANE]);
        let names: Vec<_> = table.attribute_definitions.iter().map(|a| a.attribute_name.as_str()).collect();
        assert_eq!(names, [TASK_ID, BUCKET, WAKE]);
        assert!(table.time_to_live_specification.expect("a TTL").enabled);
    }

    #[test]
    fn rates_are_read_and_others_are_named() {
        assert_eq!(rate("rate(1 minute)", "x").expect("valid"), Duration::from_secs(60));
        assert_eq!(rate("rate(2 hours)", "x").expect("valid"), Duration::from_secs(7_200));
        for bad in ["cron(* * * * ? *)", "rate(0 minutes)", "rate(1)", "rate(1 week)", ""] {
            assert!(rate(bad, "Tick.Each").expect_err(bad).to_string().contains("Tick.Each"), "{bad}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(Template::parse("Resources: {}").expect_err("no table").to_string().contains("AWS::DynamoDB::Table"));
        assert!(Template::parse("a: [").is_err());
    }
}
