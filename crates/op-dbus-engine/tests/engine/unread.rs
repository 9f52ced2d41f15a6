//! Workers that end before they read what they are asked: that costs a text none of its tries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{Backend, BackendError, Batch, Description, Error, Limits, Pool};

use crate::support::*;

/// The backend number `number`, which has ended, and reads nothing any more, once more than so many have.
struct Mortal {
    sim: Box<dyn Backend>,
    number: usize,
    ended: Arc<AtomicUsize>,
}

impl Backend for Mortal {
    fn description(&self) -> &Description {
        self.sim.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        match self.has_read_nothing() {
            true => Err(BackendError::Lost("as the test wants it".into())),
            false => self.sim.run(batch, out),
        }
    }

    fn has_read_nothing(&self) -> bool {
        self.number < self.ended.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn workers_that_end_while_they_are_idle_cost_no_text_a_try() {
    let (made, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (number, all) = (Arc::clone(&made), Arc::clone(&ended));
    let factory = move |_| {
        let (number, ended) = (number.fetch_add(1, Ordering::Relaxed), Arc::clone(&all));
        Ok(Box::new(Mortal { sim: sim(Faults::default())?, number, ended }) as Box<dyn Backend>)
    };
    let engine = start(Box::new(factory), Limits::default(), 4);
    for text in ["a", "b", "c", "d", "e", "f"] {
        // All that there are, again and again, whether they have had a batch or not.
        ended.store(made.load(Ordering::Relaxed), Ordering::Relaxed);
        assert_eq!(engine.embed(call(1, &[text])).await.unwrap().vectors, expected(text));
    }
    assert_eq!(engine.stats().retries, 0);
}

#[tokio::test]
async fn workers_that_end_again_and_again_before_they_read_anything_fail_the_text() {
    let proofs = Arc::new(AtomicUsize::new(1));
    let factory = move |_| {
        let (sim, ended) = (sim(Faults::default())?, Arc::clone(&proofs));
        let number = ended.load(Ordering::Relaxed);
        Ok(Box::new(Doomed(Mortal { sim, number, ended })) as Box<dyn Backend>)
    };
    let engine = of_pools(vec![Pool { losses_max: Some(2), ..Pool::new(Box::new(factory)) }]);
    let result = engine.embed(call(1, &["a"])).await;
    assert!(matches!(result, Err(Error::WorkerFailed(BackendError::Lost(_)))), "{result:?}");
    assert!(engine.is_failing());
}

/// Ends with its proof.
struct Doomed(Mortal);

impl Backend for Doomed {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        let result = self.0.run(batch, out);
        self.0.ended.store(self.0.number + 1, Ordering::Relaxed);
        result
    }

    fn has_read_nothing(&self) -> bool {
        self.0.has_read_nothing()
    }
}

#[tokio::test]
async fn a_text_that_comes_to_an_ended_worker_beside_an_unlucky_one_keeps_its_tries() {
    let (shown, batches) = channel();
    let (answer, answers) = channel();
    let script = Arc::new(Mutex::new((shown, answers)));
    let factory = move |_| {
        let (sim, script) = (sim(Faults::default())?, Arc::clone(&script));
        Ok(Box::new(Scripted { sim, script, is_unread: false }) as Box<dyn Backend>)
    };
    let engine = start(Box::new(factory), Limits::default(), 1);
    let begin = |uid, text| begin(&engine, call(uid, &[text]));
    let unlucky = begin(1, "a");
    tokio::task::yield_now().await;
    for _ in 0..3 {
        assert_eq!(batches.recv().unwrap(), b"a");
        answer.send(Answer::Unread).unwrap();
    }
    assert_eq!(batches.recv().unwrap(), b"a");
    let fresh = begin(2, "b");
    tokio::task::yield_now().await;
    answer.send(Answer::Unread).unwrap();
    assert_eq!(batches.recv().unwrap().len(), 2, "both are in the fifth batch");
    answer.send(Answer::Unread).unwrap();
    let mut fails = Some(Answer::Fails);
    std::thread::spawn(move || {
        for texts in batches {
            let fails = if texts == b"b" { fails.take() } else { None };
            answer.send(fails.unwrap_or(Answer::Computes)).unwrap();
        }
    });
    assert_eq!(unlucky.await.unwrap().unwrap().vectors, expected("a"));
    assert_eq!(fresh.await.unwrap().unwrap().vectors, expected("b"));
    assert_eq!(engine.stats().retries, 2);
}

/// What becomes of a batch.
enum Answer {
    Unread,
    Fails,
    Computes,
}

/// Where each batch is shown, as the first bytes of its texts, and what becomes of it is told.
type Script = (Sender<Vec<u8>>, Receiver<Answer>);

/// Shows the test each batch and does what it is told.
struct Scripted {
    sim: Box<dyn Backend>,
    script: Arc<Mutex<Script>>,
    is_unread: bool,
}

impl Backend for Scripted {
    fn description(&self) -> &Description {
        self.sim.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        // The engine's own text is longer.
        if batch.longest() > 3 {
            return self.sim.run(batch, out);
        }
        let script = self.script.lock().unwrap();
        script.0.send(batch.texts().map(|ids| ids[1] as u8).collect()).unwrap();
        let why = || "as the test wants it".to_owned();
        match script.1.recv().unwrap() {
            Answer::Unread => {
                self.is_unread = true;
                Err(BackendError::Lost(why()))
            }
            Answer::Fails => Err(BackendError::Failed(why())),
            Answer::Computes => self.sim.run(batch, out),
        }
    }

    fn has_read_nothing(&self) -> bool {
        self.is_unread
    }
}
