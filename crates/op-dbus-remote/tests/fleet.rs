//! The backend against endpoints that are played here: who gets a batch, and what is made of each answer.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use op_dbus_engine::foreign::Pooling;
use op_dbus_engine::{Backend, BackendError, Batch};
use op_dbus_remote::{Options, Protocol, RemoteBackend, Shape};

const DIMENSIONS: usize = 4;
const BATCH: Batch<'_> = Batch { ids: &[101, 777, 102], lengths: &[3] };

/// How an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// As it should.
    Well,
    /// With the vectors of another model.
    Otherwise,
    /// With this status to all but the trial batch.
    Only(u16),
    /// With this status to everything.
    All(u16),
    /// With what the caller's text may be, where vectors should be.
    Quoting,
    /// With vectors of this number alone to all but the trial batch.
    Number(f32),
    /// With this status to all but the trial batch, and that it is to be asked again in a second.
    Later(u16),
    /// Not at all.
    Silent,
}

/// An endpoint, whose mood can change.
struct Endpoint {
    url: String,
    told: Arc<Told>,
}

/// What an endpoint is told, and has to tell.
struct Told {
    mood: Mutex<Mood>,
    trials: AtomicUsize,
    batches: AtomicUsize,
}

impl Endpoint {
    fn new(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (trials, batches) = Default::default();
        let told = Arc::new(Told { mood: Mutex::new(mood), trials, batches });
        let own = Arc::clone(&told);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = Arc::clone(&own);
                // It ends when the client hangs up.
                std::thread::spawn(move || drop(talk(&stream, &told)));
            }
        });
        Self { url, told }
    }

    fn set(&self, mood: Mood) {
        *self.told.mood.lock().unwrap() = mood;
    }

    /// Trial batches, and batches of callers, that it was sent.
    fn asked(&self) -> (usize, usize) {
        (self.told.trials.load(Ordering::SeqCst), self.told.batches.load(Ordering::SeqCst))
    }
}

fn talk(stream: &TcpStream, told: &Told) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            let lower = line.to_lowercase();
            if let Some(value) = lower.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        if length == 0 {
            return Ok(());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mood = *told.mood.lock().unwrap();
        let rows = rows(&String::from_utf8_lossy(&body));
        let count = if is_trial(&rows) { &told.trials } else { &told.batches };
        count.fetch_add(1, Ordering::SeqCst);
        if mood == Mood::Silent {
            // Until the other end has had enough.
            reader.read_exact(&mut [0])?;
        }
        let (status, body) = answer(&rows, mood);
        let (length, later) = (body.len(), matches!(mood, Mood::Later(_)));
        let later = if later { "Retry-After: 1\r\n" } else { "" };
        write!(
            &mut &*stream,
            "HTTP/1.1 {status} x\r\n{later}Content-Length: {length}\r\n\r\n{body}"
        )?;
    }
}

fn rows(request: &str) -> Vec<Vec<i64>> {
    let request: serde_json::Value = serde_json::from_str(request).unwrap();
    serde_json::from_value(request["input"].clone()).unwrap()
}

/// Those of callers have one row here.
fn is_trial(rows: &[Vec<i64>]) -> bool {
    rows.len() > 1
}

/// A vector for each row, which depends on its first token alone.
fn answer(rows: &[Vec<i64>], mood: Mood) -> (u16, String) {
    let is_trial = is_trial(rows);
    match mood {
        Mood::All(status) => return (status, "said words".to_owned()),
        Mood::Only(status) | Mood::Later(status) if !is_trial => {
            return (status, "said words".to_owned());
        }
        Mood::Quoting if !is_trial => return (200, r#"{"data":"said words"}"#.to_owned()),
        _ => {}
    }
    let turned = if mood == Mood::Otherwise { 1 } else { 0 };
    let vector = |row: &Vec<i64>| {
        if let (Mood::Number(number), false) = (mood, is_trial) {
            return vec![number; DIMENSIONS];
        }
        let mut vector = vec![0.0; DIMENSIONS];
        vector[(row[0] as usize + turned) % DIMENSIONS] = 1.0;
        vector
    };
    let data: Vec<_> =
        rows.iter().map(|row| serde_json::json!({"embedding": vector(row)})).collect();
    (200, serde_json::json!({ "data": data }).to_string())
}

/// Longer than anything takes that comes at all.
const PATIENT: Duration = Duration::from_secs(120);
/// For a batch that nobody takes.
const SHORT: Duration = Duration::from_secs(1);

fn backend(endpoints: &[&Endpoint], batch_time: Duration) -> Result<RemoteBackend, BackendError> {
    hasty(endpoints, PATIENT, batch_time)
}

/// A backend that waits no longer for an endpoint than `request_time`.
fn hasty(
    endpoints: &[&Endpoint],
    request_time: Duration,
    batch_time: Duration,
) -> Result<RemoteBackend, BackendError> {
    let options = Options {
        endpoints: endpoints.iter().map(|endpoint| endpoint.url.clone()).collect(),
        home: 0,
        protocol: Protocol::OpenAi,
        texts: false,
        model: "m".to_owned(),
        token: None,
        roots: None,
        request_time,
        batch_time,
        attempts_max: 2,
        shape: Shape { dimensions: DIMENSIONS, pooling: Pooling::Mean, normalize: true },
    };
    RemoteBackend::load(options, || unreachable!("no text is sent"))
}

/// The device that computes the batch.
fn device(backend: &mut RemoteBackend) -> Result<String, BackendError> {
    let mut out = [f32::NAN; DIMENSIONS];
    backend.run(&BATCH, &mut out)?;
    assert_eq!(out, [0.0, 1.0, 0.0, 0.0]);
    Ok(backend.description().device.clone())
}

#[test]
fn the_next_takes_over_and_the_first_comes_back() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    assert_eq!(backend.description().devices, 2);
    assert_eq!(device(&mut backend).unwrap(), "remote:0");
    one.set(Mood::All(503));
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    one.set(Mood::Well);
    // Once it has rested.
    while device(&mut backend).unwrap() != "remote:0" {}
}

#[test]
fn one_that_has_become_another_model_is_not_used_again() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Otherwise));
    let mut backend = backend(&[&one, &two], SHORT).unwrap();
    one.set(Mood::All(503));
    let error = device(&mut backend).unwrap_err();
    assert!(matches!(error, BackendError::Lost(_)), "{error:?}");
    one.set(Mood::Well);
    let mut alone = self::backend(&[&two, &one], SHORT).unwrap();
    two.set(Mood::All(503));
    let error = device(&mut alone).unwrap_err().to_string();
    assert!(error.contains("no endpoint took the batch within 1 s"), "{error}");
}

#[test]
fn a_refused_batch_is_told_from_a_server_that_refuses_everything() {
    let one = Endpoint::new(Mood::Only(400));
    let mut patient = backend(&[&one], PATIENT).unwrap();
    assert!(matches!(device(&mut patient), Err(BackendError::Failed(why)) if why.contains("400")));
    one.set(Mood::Only(413));
    assert!(matches!(device(&mut patient), Err(BackendError::OutOfMemory(_))));
    let mut backend = backend(&[&one], SHORT).unwrap();
    for status in [400, 413, 500] {
        one.set(Mood::All(status));
        assert!(matches!(device(&mut backend), Err(BackendError::Lost(_))), "{status}");
        one.set(Mood::Well);
        while device(&mut backend).is_err() {}
    }
}

/// Which is none of its neighbours' fault, whom the engine then tries without it.
#[test]
fn a_batch_that_servers_fail_is_tried_twice() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    for mood in [Mood::Only(500), Mood::Only(502), Mood::Quoting, Mood::Number(0.0)] {
        let before = (one.asked().1, two.asked().1);
        one.set(mood);
        two.set(mood);
        let error = device(&mut backend).unwrap_err();
        assert!(matches!(error, BackendError::Failed(_)), "{mood:?}: {error:?}");
        assert_eq!((one.asked().1, two.asked().1), (before.0 + 1, before.1 + 1), "{mood:?}");
        // Neither has lost its place.
        one.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
        one.set(mood);
        two.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
    }
    let mut alone = self::backend(&[&one], PATIENT).unwrap();
    one.set(Mood::Only(500));
    let before = one.asked().1;
    assert!(matches!(device(&mut alone), Err(BackendError::Failed(why)) if why.contains("500")));
    assert_eq!(one.asked().1, before + 2);
}

#[test]
fn numbers_that_cannot_be_normalised_are_no_vectors() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], PATIENT).unwrap();
    for number in [0.0, 1e30] {
        one.set(Mood::Number(number));
        let error = device(&mut backend).unwrap_err().to_string();
        assert!(error.contains("can't be made one of length 1"), "{number}: {error}");
    }
}

#[test]
fn who_was_silent_is_left_alone_for_as_long() {
    const REQUEST_TIME: Duration = Duration::from_millis(500);
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = hasty(&[&one, &two], REQUEST_TIME, PATIENT).unwrap();
    one.set(Mood::Silent);
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    let (since, before) = (Instant::now(), one.asked());
    while one.asked() == before {
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
    }
    // At its end two had computed a batch as well, which took no time to speak of.
    assert!(since.elapsed() >= REQUEST_TIME / 2, "{:?}", since.elapsed());
}

/// It would be waited for for two minutes otherwise.
#[test]
fn a_caller_waits_a_moment_for_one_that_has_failed() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    one.set(Mood::All(503));
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    one.set(Mood::Silent);
    let (since, before) = (Instant::now(), one.asked());
    while one.asked() == before {
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
    }
    assert!(since.elapsed() < PATIENT / 2, "{:?}", since.elapsed());
}

#[test]
fn who_asks_for_a_rest_gets_it_and_need_not_prove_itself_again() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    for status in [429, 503] {
        let mut backend = backend(&[&one, &two], PATIENT).unwrap();
        one.set(Mood::Later(status));
        let (trials, batches) = one.asked();
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
        assert_eq!(one.asked(), (trials, batches + 1), "{status}");
        let since = Instant::now();
        one.set(Mood::Well);
        while device(&mut backend).unwrap() != "remote:0" {}
        assert!(since.elapsed() >= SHORT / 2, "{:?}", since.elapsed());
        assert_eq!(one.asked(), (trials, batches + 2), "{status}");
    }
}

#[test]
fn what_a_server_says_of_a_callers_batch_is_not_told() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], SHORT).unwrap();
    for mood in [Mood::Only(400), Mood::Only(500), Mood::Only(413), Mood::Quoting] {
        one.set(mood);
        let error = device(&mut backend).unwrap_err().to_string();
        assert!(!error.contains("said words"), "{mood:?}: {error}");
    }
    // Of the trial batch it is, since nobody's text is in it.
    let refused = Endpoint::new(Mood::All(500));
    let error = self::backend(&[&refused], SHORT).unwrap_err().to_string();
    assert!(error.contains("it answers 500 (said words)"), "{error}");
}
