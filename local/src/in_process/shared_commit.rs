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
