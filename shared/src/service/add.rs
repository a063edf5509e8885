//! Adding tasks: DynamoDB first, then Redis.

use std::collections::HashSet;

use super::{Service, log_down};
use crate::due_index::{Partition, Place};
use crate::error::Error;
use crate::table::Inserted;
use crate::task::{Content, Task, random_task_id};
use crate::time::Timestamp;

/// How often another id is tried when one of the service's choice is taken.
const ID_TRIES: usize = 4;

/// A checked task to add.
#[derive(Clone, Debug)]
pub struct Addition {
    /// The caller's id; `None`: the service chooses.
    pub id: Option<String>,
    /// When it is due.
    pub execute_time: Timestamp,
    /// The rest.
    pub content: Content,
    /// The digest of what was sent; equal for equal content.
    pub digest: String,
}

/// A task that is stored.
struct Added {
    id: String,
    is_new: bool,
    /// Where Redis should have it.
    place: Place,
}

impl Service {
    /// Stores `additions` and returns, for each, the id and whether it is new. One that has the id of an earlier one
    /// is added after that one.
    pub async fn add(&self, additions: Vec<Addition>, now: Timestamp) -> Vec<Result<(String, bool), Error>> {
        let mut results: Vec<Option<Result<(String, bool), Error>>> = additions.iter().map(|_| None).collect();
        let mut soon: Vec<(Partition, String, Timestamp)> = Vec::new();
        let mut known: Vec<(Partition, String, Place)> = Vec::new();
        let mut waiting: Vec<(usize, Addition)> = additions.into_iter().enumerate().collect();
        while !waiting.is_empty() {
            let mut ids = HashSet::new();
            let (round, later): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|(_, addition)| addition.id.as_ref().is_none_or(|id| ids.insert(id.clone())));
            waiting = later;
            let write = async |(index, addition): (usize, Addition)| {
                let lane = addition.content.lane();
                (index, lane, self.add_one(addition, now).await)
            };
            for (index, lane, result) in self.batch_writes.all(round.into_iter().map(write).collect()).await {
                results[index] = Some(result.map(|added| {
                    let partition = self.partition(lane, &added.id);
                    match added.place {
                        Place::Future(due) if added.is_new => soon.push((partition, added.id.clone(), due)),
                        Place::Future(_) => known.push((partition, added.id.clone(), added.place)),
                        Place::Lease(_) | Place::Nowhere => {}
                    }
                    (added.id, added.is_new)
                }));
            }
        }
        let soon: Vec<(Partition, &str, Timestamp)> =
            soon.iter().map(|(p, id, due)| (p.clone(), id.as_str(), *due)).collect();
        if let Err(error) = self.index.add(&soon).await {
            log_down(&error);
        }
        // The first call may have died before it told Redis.
        let known: Vec<(Partition, &str, Place)> =
            known.iter().map(|(p, id, place)| (p.clone(), id.as_str(), *place)).collect();
        self.place(&known).await;
        results.into_iter().map(|result| result.expect("every addition was in one round")).collect()
    }

    async fn add_one(&self, addition: Addition, now: Timestamp) -> Result<Added, Error> {
        let chosen = addition.id.is_none();
        let id = addition.id.unwrap_or_else(random_task_id);
        let mut task = Task::new(id, addition.content, addition.digest, addition.execute_time, now);
        for _ in 0..ID_TRIES {
            match self.table.insert(&task, now).await? {
                Inserted::Created => {
                    return Ok(Added { id: task.id, is_new: true, place: self.place_of_due(task.execute_time, now) });
                }
                Inserted::Exists(_) if chosen => task.id = random_task_id(),
                Inserted::Exists(stored) if stored.digest == task.digest => {
                    return Ok(Added { id: task.id, is_new: false, place: self.place_of(&stored, now) });
                }
                Inserted::Exists(_) => return Err(Error::TaskExists(task.id)),
            }
        }
        Err(Error::Internal("no free id was found".into()))
    }
}
