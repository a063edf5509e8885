//! How many writes of batches are under way at once.

use std::future::Future;

use futures::StreamExt;
use tokio::sync::Semaphore;

/// Conditional writes of one batch that are under way at once.
pub(super) const WRITES_AT_ONCE: usize = 32;
/// Conditional writes of all batches of a process, where nothing else bounds them. A Lambda function has one call at a
/// time, and so never reaches it.
const WRITES_TOGETHER: usize = 8 * WRITES_AT_ONCE;

/// Bounds the conditional writes that all batches of a process have under way at once, so that whoever has a single
/// task finds few of them before it, however many batches wait. Its own write does not wait here.
pub struct BatchWrites(Semaphore);

impl Default for BatchWrites {
    fn default() -> Self {
        Self::new(WRITES_TOGETHER)
    }
}

impl BatchWrites {
    /// At most `together` writes of batches are under way at once.
    pub fn new(together: usize) -> Self {
        Self(Semaphore::new(together))
    }

    /// Does `write`, one of `of` that its caller asked for: a single one at once, one of several when it is its turn.
    pub(super) async fn one<T>(&self, of: usize, write: impl Future<Output = T>) -> T {
        // An error means that there is no bound any more, and nobody takes it away.
        let _permit = if of > 1 { self.0.acquire().await.ok() } else { None };
        write.await
    }

    /// Does all of `writes`, which one caller asked for; the results have their order.
    pub(super) async fn all<T>(&self, writes: Vec<impl Future<Output = T>>) -> Vec<T> {
        let of = writes.len();
        let writes = writes.into_iter().map(|write| self.one(of, write));
        futures::stream::iter(writes).buffered(WRITES_AT_ONCE).collect().await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use futures::future::{join, pending, ready};
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn all_batches_together_keep_to_the_bound_and_the_results_to_their_order() {
        let (bound, under_way, most) = (BatchWrites::new(3), Cell::new(0), Cell::new(0));
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
        assert_eq!(most.get(), 3);
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
}
