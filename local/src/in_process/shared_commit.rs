//! Writes that share a commit.
//!
//! The embedded DynamoDB commits each request by itself, which costs it a third of its time. A transaction of DynamoDB
//! is one commit, and refuses all of its writes where it refuses one; so those that are refused are left to be asked
//! for by themselves, and the rest is tried again.

use std::collections::HashMap;

use dynoxide::actions::get_item::GetItemRequest;
use dynoxide::actions::transact_write_items::{
    TransactPut, TransactUpdate, TransactWriteItem, TransactWriteItemsRequest,
};
use dynoxide::actions::update_item::UpdateItemResponse;
use dynoxide::types::{CapacityDetail, ConsumedCapacity, TRANSACTIONAL_CAPACITY_FACTOR};
use dynoxide::{AttributeValue, Database, DynoxideError, Item};
use serde::Deserialize;

use super::operation::{Answer, written};

/// A write that may share its commit.
#[derive(Debug)]
pub struct SharedWrite {
    write: TransactWriteItem,
    answer: AnswerWith,
    asks_capacity: bool,
}

/// What the answer has of the item.
#[derive(Debug)]
enum AnswerWith {
    Nothing,
    /// All of it, as it is then.
    New,
    /// These attributes, as they were before.
    Old(Vec<String>),
}

/// A `PutItem` or `UpdateItem` with no more than what a transaction can do, too.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Request {
    table_name: String,
    item: Option<Item>,
    key: Option<Item>,
    update_expression: Option<String>,
    condition_expression: Option<String>,
    expression_attribute_names: Option<HashMap<String, String>>,
    expression_attribute_values: Option<HashMap<String, AttributeValue>>,
    return_values: Option<String>,
    return_consumed_capacity: Option<String>,
    /// A refused write is asked for again by itself, and answers with this.
    #[serde(rename = "ReturnValuesOnConditionCheckFailure")]
    _return_values_on_condition_check_failure: Option<String>,
}

impl SharedWrite {
    /// Reads the body of a `PutItem` or `UpdateItem`; `None` where it must have a commit of its own.
    pub fn read(body: &[u8]) -> Option<Self> {
        let request: Request = serde_json::from_slice(body).ok()?;
        let asks_capacity = match request.return_consumed_capacity.as_deref() {
            None | Some("NONE") => false,
            Some("TOTAL") => true,
            _ => return None,
        };
        let returns = request.return_values.as_deref().unwrap_or("NONE");
        let (write, answer) = match (request.item, request.key, request.update_expression) {
            (Some(item), None, None) if returns == "NONE" => {
                let put = TransactPut {
                    table_name: request.table_name,
                    item,
                    condition_expression: request.condition_expression,
                    expression_attribute_names: request.expression_attribute_names,
                    expression_attribute_values: request.expression_attribute_values,
                    return_values_on_condition_check_failure: None,
                };
                (TransactWriteItem { put: Some(put), ..TransactWriteItem::default() }, AnswerWith::Nothing)
            }
            (None, Some(key), Some(update_expression)) => {
                let answer = match returns {
                    "NONE" => AnswerWith::Nothing,
                    "ALL_NEW" => AnswerWith::New,
                    "UPDATED_OLD" => {
                        AnswerWith::Old(targets(&update_expression, request.expression_attribute_names.as_ref()?)?)
                    }
                    _ => return None,
                };
                let update = TransactUpdate {
                    table_name: request.table_name,
                    key,
                    update_expression,
                    condition_expression: request.condition_expression,
                    expression_attribute_names: request.expression_attribute_names,
                    expression_attribute_values: request.expression_attribute_values,
                    return_values_on_condition_check_failure: None,
                };
                (TransactWriteItem { update: Some(update), ..TransactWriteItem::default() }, answer)
            }
            _ => return None,
        };
        Some(Self { write, answer, asks_capacity })
    }

    fn table_name(&self) -> Option<&str> {
        let TransactWriteItem { put, update, .. } = &self.write;
        put.as_ref().map(|put| &*put.table_name).or(update.as_ref().map(|update| &*update.table_name))
    }

    /// The item that it updates, as it is now.
    fn item(&self, database: &Database) -> Result<Option<Item>, DynoxideError> {
        let Some(update) = &self.write.update else {
            return Ok(None);
        };
        let (table_name, key) = (update.table_name.clone(), update.key.clone());
        Ok(database.get_item(GetItemRequest { table_name, key, ..GetItemRequest::default() })?.item)
    }

    /// The attributes that the answer needs from before the write.
    fn before(&self, database: &Database) -> Result<Option<Item>, DynoxideError> {
        let AnswerWith::Old(names) = &self.answer else {
            return Ok(None);
        };
        let mut item = self.item(database)?.unwrap_or_default();
        item.retain(|name, _| names.contains(name));
        Ok(Some(item).filter(|item| !item.is_empty()))
    }

    fn answer(&self, before: Option<Item>, capacity: &[ConsumedCapacity], database: &Database) -> Answer {
        let attributes = if matches!(self.answer, AnswerWith::New) { self.item(database)? } else { before };
        let of_table = |capacity: &&ConsumedCapacity| Some(&*capacity.table_name) == self.table_name();
        let consumed_capacity = capacity.iter().find(of_table).filter(|_| self.asks_capacity).cloned();
        // The answer to a PutItem has no other fields.
        Ok(written(UpdateItemResponse { attributes, consumed_capacity, ..UpdateItemResponse::default() }))
    }
}

/// The attributes that an update of whole attributes sets and removes; `None` where it is not as simple as that.
fn targets(expression: &str, names: &HashMap<String, String>) -> Option<Vec<String>> {
    let simple = |c: char| c.is_ascii_alphanumeric() || "#:_ ,=+-".contains(c);
    let sets = expression.strip_prefix("SET ").filter(|_| expression.chars().all(simple))?;
    let (sets, removes) = sets.split_once(" REMOVE ").unwrap_or((sets, ""));
    let set = sets.split(',').map(|part| part.split_once('=').map(|(name, _)| name));
    let removed = removes.split(',').filter(|name| !name.trim().is_empty()).map(Some);
    set.chain(removed).map(|name| names.get(name?.trim()).cloned()).collect()
}

/// Applies `writes` in one commit. Where one is refused nothing is written, and the error has which ones are.
pub fn commit(database: &Database, writes: &[&SharedWrite]) -> Result<Vec<Answer>, Vec<bool>> {
    let all = || vec![true; writes.len()];
    let before: Result<Vec<_>, _> = writes.iter().map(|write| write.before(database)).collect();
    let before = before.map_err(|_| all())?;
    let request = TransactWriteItemsRequest {
        transact_items: writes.iter().map(|write| write.write.clone()).collect(),
        return_consumed_capacity: Some("INDEXES".to_owned()),
        ..TransactWriteItemsRequest::default()
    };
    let capacity = match database.transact_write_items(request) {
        Ok(response) => response.consumed_capacity.unwrap_or_default(),
        Err(DynoxideError::TransactionCanceledException(_, reasons)) => {
            let refused: Vec<bool> = reasons.iter().map(|reason| reason.code != "None").collect();
            let is_told = refused.len() == writes.len() && refused.contains(&true);
            return Err(if is_told { refused } else { all() });
        }
        // Two writes of one item, or more bytes than a transaction may have.
        Err(_) => return Err(all()),
    };
    let capacity: Vec<ConsumedCapacity> = capacity
        .into_iter()
        .map(|table| {
            let sharing = writes.iter().filter(|write| write.table_name() == Some(&table.table_name)).count();
            alone(table, sharing)
        })
        .collect();
    Ok(writes.iter().zip(before).map(|(write, before)| write.answer(before, &capacity, database)).collect())
}

/// What each of `writes` would have consumed without a transaction, on the average: their sum is exact.
fn alone(capacity: ConsumedCapacity, writes: usize) -> ConsumedCapacity {
    let units = |detail: &CapacityDetail| detail.capacity_units;
    let table = capacity.table.as_ref().map_or(0.0, units) / TRANSACTIONAL_CAPACITY_FACTOR;
    let indexes: f64 = capacity.global_secondary_indexes.iter().flat_map(HashMap::values).map(units).sum();
    let capacity_units = (table + indexes) / writes as f64;
    ConsumedCapacity { table_name: capacity.table_name, capacity_units, ..ConsumedCapacity::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::operation::Operation;
    use aws_sdk_dynamodb::config::http::HttpRequest;
    use aws_smithy_types::body::SdkBody;
    use serde_json::{Value, json};

    fn ask(database: &Database, operation: &str, body: &Value) -> Value {
        let mut request = HttpRequest::new(SdkBody::from(body.to_string()));
        request.headers_mut().insert("x-amz-target", format!("DynamoDB_20120810.{operation}"));
        let read = Operation::read(&request).expect("understood");
        answered((read.run)(database))
    }

    fn answered(answer: Answer) -> Value {
        serde_json::from_str(&answer.and_then(|body| body()).expect("an answer")).expect("JSON")
    }

    /// Things `a` and `b` of a kind, in a table that has an index by kind.
    fn things() -> Database {
        let database = Database::memory().expect("a database");
        let attribute = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
        let key = |name: &str| json!([{"AttributeName": name, "KeyType": "HASH"}]);
        let index =
            json!({"IndexName": "kinds", "KeySchema": key("kind"), "Projection": {"ProjectionType": "KEYS_ONLY"}});
        let table = json!({
            "TableName": "things", "BillingMode": "PAY_PER_REQUEST", "KeySchema": key("id"),
            "AttributeDefinitions": [attribute("id"), attribute("kind")], "GlobalSecondaryIndexes": [index],
        });
        ask(&database, "CreateTable", &table);
        for id in ["a", "b"] {
            let item = json!({"id": {"S": id}, "kind": {"S": "old"}, "size": {"N": "1"}});
            ask(&database, "PutItem", &json!({"TableName": "things", "Item": item}));
        }
        database
    }

    fn put(id: &str) -> Value {
        json!({
            "TableName": "things", "Item": {"id": {"S": id}, "kind": {"S": "new"}},
            "ConditionExpression": "attribute_not_exists(#id)", "ExpressionAttributeNames": {"#id": "id"},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD", "ReturnConsumedCapacity": "TOTAL",
        })
    }

    fn update(id: &str, expression: &str, returns: &str) -> Value {
        json!({
            "TableName": "things", "Key": {"id": {"S": id}}, "UpdateExpression": expression,
            "ConditionExpression": "attribute_exists(#id)", "ReturnValues": returns, "ReturnConsumedCapacity": "TOTAL",
            "ExpressionAttributeNames": {"#id": "id", "#size": "size", "#kind": "kind", "#colour": "colour"},
            "ExpressionAttributeValues": {":one": {"N": "1"}, ":red": {"S": "red"}},
        })
    }

    fn read(body: &Value) -> Option<SharedWrite> {
        SharedWrite::read(body.to_string().as_bytes())
    }

    const GROWS: &str = "SET #size = #size + :one, #colour = :red REMOVE #kind ";

    #[test]
    fn answers_are_those_of_commits_of_their_own() {
        for returns in ["NONE", "ALL_NEW", "UPDATED_OLD"] {
            let bodies = [put("c"), update("a", GROWS, returns), update("b", GROWS, returns), put("d")];
            let (together, alone) = (things(), things());
            let writes: Vec<SharedWrite> = bodies.iter().map(|body| read(body).expect("may share")).collect();
            let shared = commit(&together, &writes.iter().collect::<Vec<_>>()).expect("written");
            let mut units = [0.0, 0.0];
            for (answer, body) in shared.into_iter().zip(&bodies) {
                let operation = if body.get("Item").is_some() { "PutItem" } else { "UpdateItem" };
                let answers = [answered(answer), ask(&alone, operation, body)];
                for (units, answer) in units.iter_mut().zip(&answers) {
                    *units += answer["ConsumedCapacity"]["CapacityUnits"].as_f64().expect("a number");
                }
                assert_eq!(answers[0].get("Attributes"), answers[1].get("Attributes"), "{body}");
            }
            assert_eq!(units[0], units[1], "{returns}");
            let scan = |database| ask(database, "Scan", &json!({"TableName": "things"}));
            assert_eq!(scan(&together), scan(&alone));
        }
    }

    #[test]
    fn refused_writes_are_told_and_nothing_is_written() {
        let database = things();
        let before = ask(&database, "Scan", &json!({"TableName": "things"}));
        let tried = |bodies: &[Value]| {
            let writes: Vec<SharedWrite> = bodies.iter().map(|body| read(body).expect("may share")).collect();
            commit(&database, &writes.iter().collect::<Vec<_>>()).err().expect("refused")
        };
        assert_eq!(tried(&[put("c"), put("a"), update("b", GROWS, "NONE")]), [false, true, false]);
        assert_eq!(tried(&[put("c"), update("nobody", GROWS, "ALL_NEW")]), [false, true]);
        let twice = [update("a", GROWS, "NONE"), update("a", GROWS, "NONE"), put("c")];
        assert_eq!(tried(&twice), [true, true, true], "one transaction cannot write an item twice");
        assert_eq!(ask(&database, "Scan", &json!({"TableName": "things"})), before);
    }

    #[test]
    fn what_a_transaction_cannot_do_has_a_commit_of_its_own() {
        assert!(read(&update("a", GROWS, "UPDATED_OLD")).is_some());
        for returns in ["ALL_OLD", "UPDATED_NEW"] {
            assert!(read(&update("a", GROWS, returns)).is_none(), "{returns}");
        }
        for expression in ["SET #size.#colour = :red", "SET #size = if_not_exists(#size, :one)", "REMOVE #kind"] {
            assert!(read(&update("a", expression, "UPDATED_OLD")).is_none(), "{expression}");
        }
        for (field, value) in [("Expected", json!({})), ("ReturnItemCollectionMetrics", json!("SIZE"))] {
            let mut body = put("a");
            body[field] = value;
            assert!(read(&body).is_none(), "{field}");
        }
    }
}
