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

/// Permits that a write of a batch takes while single tasks are leased, so that a quarter of the bound is left of it.
const PERMITS_BESIDE_LEASES: u32 = 4;
/// Writes of batches after a single lease that take so many; about a second of them where one disk bounds them all.
const WRITES_BESIDE_A_LEASE: usize = 2_000;

/// Bounds the conditional writes that all batches of a process have under way at once, so that whoever leases a single
/// task finds few of them before it, however many batches wait. Its own write does not wait here.
pub struct BatchWrites {
    permits: Semaphore,
    together: u32,
    /// Writes of batches that are still beside a single lease.
    beside_lease: AtomicUsize,
}

impl Default for BatchWrites {
    fn default() -> Self {
        Self::new(WRITES_TOGETHER)
    }
}

impl BatchWrites {
    /// At most `together` writes of batches are under way at once, and a quarter of them after a single task was leased.
    pub fn new(together: u16) -> Self {
        Self { permits: Semaphore::new(together.into()), together: together.into(), beside_lease: AtomicUsize::new(0) }
    }

    /// What one caller asked for: `of` writes.
    pub(super) fn batch(&self, of: usize) -> Batch<'_> {
        Batch { bound: self, of, turn: Mutex::new(()) }
    }

    /// The same where the writes are leases.
    pub(super) fn leases(&self, of: usize) -> Batch<'_> {
        if of == 1 {
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
    /// Whose holder alone waits for permits, so that a small batch waits for one write of each large one and not for
    /// all of them.
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
        self.bound.permits.acquire_many(self.bound.permits_of_one()).await.ok()
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
    async fn after_a_single_lease_batches_keep_to_a_quarter_for_a_while() {
        let bound = BatchWrites::new(12);
        bound.leases(2).write(ready(())).await;
        assert_eq!(most_under_way(&bound).await, 12);
        bound.leases(1).write(ready(())).await;
        for _ in 0..WRITES_BESIDE_A_LEASE / 100 {
            assert_eq!(most_under_way(&bound).await, 3);
        }
        assert_eq!(most_under_way(&bound).await, 12);

        let narrow = BatchWrites::new(3);
        narrow.leases(1).write(ready(())).await;
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
        let mut stuck = Box::pin(bound.all(vec![write(), write(), write()]));
        assert!(poll!(&mut stuck).is_pending());
        assert_eq!(begun.get(), 2);
        assert!(poll!(Box::pin(bound.all(vec![ready(1), ready(2)]))).is_pending());
        assert_eq!(bound.all(vec![ready(3)]).await, [3]);
        drop(stuck);
        assert_eq!(bound.all(vec![ready(1), ready(2)]).await, [1, 2]);
    }

    #[tokio::test]
    async fn a_small_batch_waits_for_one_write_of_each_large_one() {
        let (bound, order) = (BatchWrites::new(1), RefCell::new(Vec::new()));
        let write = async |batch: usize| {
            tokio::task::yield_now().await;
            order.borrow_mut().push(batch);
        };
        let batch = |batch: usize, writes: usize| bound.all((0..writes).map(|_| write(batch)).collect());
        tokio::join!(batch(0, 30), batch(1, 30), batch(2, 2));
        assert_eq!(order.borrow()[..9], [0, 0, 1, 2, 0, 1, 2, 0, 1]);
    }
}
