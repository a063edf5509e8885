//! How many writes of batches are under way at once.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures::StreamExt;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

/// Conditional writes of one batch that are under way at once.
pub(super) const WRITES_AT_ONCE: usize = 32;
/// Conditional writes of all batches of a process, where nothing else bounds them. A Lambda function has one call at a
/// time, and so never reaches it.
const WRITES_TOGETHER: u16 = 8 * WRITES_AT_ONCE as u16;

/// The most writes of a small batch: one that someone may wait for, and not one of many that are worked off.
const SMALL: usize = 10;
/// Permits that a write of a large batch takes while few tasks at once are leased, so that a quarter of the bound is left.
const PERMITS_BESIDE_LEASES: u32 = 4;
/// Writes of large batches after a lease of few tasks that take so many: some tenths of a second of them where one disk
/// bounds them all. The last lease of a queue that was drained is one of few tasks, too, so more would slow down what
/// comes after it.
const WRITES_BESIDE_A_LEASE: usize = 500;

/// Bounds the conditional writes that all batches of a process have under way at once, so that whoever leases few tasks
/// finds few others before them, however many batches wait. A single write does not wait here, and small batches wait
/// only for each other.
pub struct BatchWrites {
    small: Semaphore,
    large: Semaphore,
    together: u32,
    /// Writes of large batches that are still beside a lease of few tasks.
    beside_lease: AtomicUsize,
}

impl Default for BatchWrites {
    fn default() -> Self {
        Self::new(WRITES_TOGETHER)
    }
}

impl BatchWrites {
    /// At most `together` writes of small batches and as many of large ones are under way at once, of the latter a
    /// quarter after few tasks were leased.
    pub fn new(together: u16) -> Self {
        Self {
            small: Semaphore::new(together.into()),
            large: Semaphore::new(together.into()),
            together: together.into(),
            beside_lease: AtomicUsize::new(0),
        }
    }

    /// What one caller asked for: `of` writes.
    fn batch(&self, of: usize) -> Batch<'_> {
        Batch { bound: self, of, turn: Mutex::new(()) }
    }

    /// The same where the writes are leases.
    pub(super) fn leases(&self, of: usize) -> Batch<'_> {
        if of <= SMALL {
            self.beside_lease.store(WRITES_BESIDE_A_LEASE, Relaxed);
        }
        self.batch(of)
    }

    /// Does all of `writes`, which one caller asked for; the results have their order.
    pub(super) async fn all<T>(&self, writes: Vec<impl Future<Output = T>>) -> Vec<T> {
        let batch = &self.batch(writes.len());
        let writes = writes.into_iter().map(|write| batch.write(write));
        futures::stream::iter(writes).buffered(WRITES_AT_ONCE).collect().await
    }

    fn permits_of_one(&self) -> u32 {
        let beside_lease = self.beside_lease.fetch_update(Relaxed, Relaxed, |writes| writes.checked_sub(1)).is_ok();
        if beside_lease { PERMITS_BESIDE_LEASES.min(self.together) } else { 1 }
    }
}

/// Writes that one caller asked for.
pub(super) struct Batch<'a> {
    bound: &'a BatchWrites,
    of: usize,
    /// Whose holder alone waits for permits, so that each batch waits for one write of each other one, and not for all
    /// of them.
    turn: Mutex<()>,
}

impl Batch<'_> {
    /// Does `write`: a single one at once, one of several when it is its turn.
    pub(super) async fn write<T>(&self, write: impl Future<Output = T>) -> T {
        let _permits = if self.of > 1 { self.permits().await } else { None };
        write.await
    }

    async fn permits(&self) -> Option<SemaphorePermit<'_>> {
        let _turn = self.turn.lock().await;
        // An error means that there is no bound any more, and nobody takes it away.
        if self.of <= SMALL {
            self.bound.small.acquire().await.ok()
        } else {
            self.bound.large.acquire_many(self.bound.permits_of_one()).await.ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use futures::future::{join, pending, ready};
    use futures::poll;

    use super::*;

    /// The most writes that two batches have under way together, whose results have their order.
    async fn most_under_way(bound: &BatchWrites) -> usize {
        let (under_way, most) = (Cell::new(0), Cell::new(0));
        let write = async |number: usize| {
            under_way.set(under_way.get() + 1);
            most.set(most.get().max(under_way.get()));
            tokio::task::yield_now().await;
            under_way.set(under_way.get() - 1);
            number
        };
        let batch = |first: usize| bound.all((first..first + 50).map(&write).collect());
        let (one, other) = join(batch(0), batch(50)).await;
        assert_eq!([one, other].concat(), Vec::from_iter(0..100));
        most.get()
    }

    #[tokio::test]
    async fn all_batches_together_keep_to_the_bound_and_the_results_to_their_order() {
        assert_eq!(most_under_way(&BatchWrites::new(3)).await, 3);
    }

    #[tokio::test]
    async fn after_a_small_lease_large_batches_keep_to_a_quarter_for_a_while() {
        let bound = BatchWrites::new(12);
        bound.leases(SMALL + 1).write(ready(())).await;
        assert_eq!(most_under_way(&bound).await, 12);
        bound.leases(SMALL).write(ready(())).await;
        for _ in 0..WRITES_BESIDE_A_LEASE / 100 {
            assert_eq!(most_under_way(&bound).await, 3);
        }
        assert_eq!(most_under_way(&bound).await, 12);

        let narrow = BatchWrites::new(3);
        narrow.leases(SMALL).write(ready(())).await;
        assert_eq!(most_under_way(&narrow).await, 1);
    }

    #[tokio::test]
    async fn a_single_write_does_not_wait_for_batches_and_one_that_is_given_up_makes_room() {
        let bound = BatchWrites::new(2);
        let begun = Rc::new(Cell::new(0));
        let write = || {
            let begun = begun.clone();
            async move {
                begun.set(begun.get() + 1);
                pending::<()>().await;
            }
        };
        let batch = |of: usize| bound.all((0..of).map(ready).collect());
        let mut stuck = Vec::new();
        for (of, begun_now) in [(SMALL + 1, 2), (SMALL, 4)] {
            assert_eq!(batch(of).await.len(), of, "small ones do not wait for large ones");
            stuck.push(Box::pin(bound.all((0..of).map(|_| write()).collect())));
            assert!(poll!(stuck.last_mut().expect("one")).is_pending());
            assert_eq!(begun.get(), begun_now);
            assert!(poll!(Box::pin(batch(of))).is_pending());
            assert_eq!(batch(1).await, [0]);
        }
        drop(stuck);
        for of in [SMALL + 1, SMALL] {
            assert_eq!(batch(of).await.len(), of);
        }
    }

    #[tokio::test]
    async fn a_batch_waits_for_one_write_of_each_other_one() {
        let (bound, order) = (BatchWrites::new(1), RefCell::new(Vec::new()));
        let write = async |batch: usize| {
            tokio::task::yield_now().await;
            order.borrow_mut().push(batch);
        };
        let batch = |batch: usize, writes: usize| bound.all((0..writes).map(|_| write(batch)).collect());
        tokio::join!(batch(0, 60), batch(1, 60), batch(2, 11));
        assert_eq!(order.borrow()[..9], [0, 0, 1, 2, 0, 1, 2, 0, 1]);
    }
}
