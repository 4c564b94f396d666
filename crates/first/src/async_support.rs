//! Support for asynchronous tests; the executor is the test's own.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread;

/// Runs a future to its end or to its panic.
pub(crate) async fn caught<F: Future<Output = ()>>(future: F) -> Result<(), Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Fails a test whose future was not awaited to its end: it would pass without having tested
/// anything.
#[derive(Debug)]
pub(crate) struct MustFinish {
    pub(crate) finished: bool,
}

impl Drop for MustFinish {
    fn drop(&mut self) {
        assert!(
            self.finished || thread::panicking(),
            "first: the future of verify_async was dropped before its end; `.await` it"
        );
    }
}
