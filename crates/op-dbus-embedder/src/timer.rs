//! The time for deadlines, on whatever executor a call is made.

use std::io;
use std::pin::pin;
use std::task::Poll;

use op_dbus_engine::CancellationToken;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::DropGuard;

/// A thread that tells when it is time, until this is dropped.
#[derive(Debug)]
pub struct Timer {
    handle: Handle,
    _end: DropGuard,
}

impl Timer {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (handle, end) = (runtime.handle().clone(), CancellationToken::new());
        let guard = end.clone().drop_guard();
        let body = move || runtime.block_on(end.cancelled());
        std::thread::Builder::new().name("timer".into()).spawn(body)?;
        Ok(Self { handle, _end: guard })
    }

    /// `future` with this timer for those that it makes.
    pub async fn around<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|context| -> Poll<F::Output> {
            let _within = self.handle.enter();
            future.as_mut().poll(context)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use op_dbus_engine::sim::SimBackend;
    use op_dbus_engine::{Call, Engine, EngineConfig, Error, ModelShape, Pool, Tokenizer};

    use super::*;

    #[test]
    fn deadlines_need_no_executor_of_tokio_nor_one_with_a_timer() {
        let (dimensions, max_input_tokens, normalized, matryoshka) = (8, 64, true, Vec::new());
        let model = ModelShape { dimensions, max_input_tokens, normalized, matryoshka };
        let pool = Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(8)))));
        let config = EngineConfig::default();
        let engine = Engine::start(Tokenizer::bytes(64), model, vec![pool], config).unwrap();
        let timer = Timer::start().unwrap();
        let call = |deadline| {
            let inputs = vec!["a text".to_owned()].into();
            timer.around(engine.embed(Call { inputs, deadline, ..Call::default() }))
        };
        let never = std::future::pending::<()>();
        let soon = async { tokio::time::timeout(Duration::from_millis(1), never).await };
        let (past, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let without_a_timer = Builder::new_current_thread().build().unwrap();
        for late in [
            futures_executor::block_on(call(Some(past))),
            without_a_timer.block_on(call(Some(past))),
        ] {
            assert_eq!(late, Err(Error::DeadlineExceeded));
        }
        assert_eq!(futures_executor::block_on(call(Some(later))).unwrap().rows, 1);
        assert_eq!(without_a_timer.block_on(call(Some(later))).unwrap().rows, 1);
        // It wakes who waits.
        assert!(futures_executor::block_on(timer.around(soon)).is_err());
    }
}
