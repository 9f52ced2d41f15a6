//! The backend against endpoints that are played here: who gets a batch, and what is made of each answer.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use op_dbus_engine::foreign::Pooling;
use op_dbus_engine::{Backend, BackendError, Batch};
use op_dbus_remote::{Options, Protocol, RemoteBackend, Shape};

const DIMENSIONS: usize = 4;
const BATCH: Batch<'_> = Batch { ids: &[101, 777, 102], lengths: &[3] };

/// How an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// An endpoint, whose mood can change.
struct Endpoint {
    url: String,
    mood: Arc<Mutex<Mood>>,
}

impl Endpoint {
    fn new(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mood = Arc::new(Mutex::new(mood));
        let own = Arc::clone(&mood);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mood = Arc::clone(&own);
                // It ends when the client hangs up.
                std::thread::spawn(move || drop(talk(&stream, &mood)));
            }
        });
        Self { url, mood }
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }
}

fn talk(stream: &TcpStream, mood: &Mutex<Mood>) -> std::io::Result<()> {
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
        let (status, body) = answer(&String::from_utf8_lossy(&body), *mood.lock().unwrap());
        let length = body.len();
        write!(&mut &*stream, "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{body}")?;
    }
}

/// A vector for each row, which depends on its first token alone.
fn answer(request: &str, mood: Mood) -> (u16, String) {
    let request: serde_json::Value = serde_json::from_str(request).unwrap();
    let rows: Vec<Vec<i64>> = serde_json::from_value(request["input"].clone()).unwrap();
    let is_trial = rows.len() == 2;
    match mood {
        Mood::All(status) => return (status, "said words".to_owned()),
        Mood::Only(status) if !is_trial => return (status, "said words".to_owned()),
        Mood::Quoting if !is_trial => return (200, r#"{"data":"said words"}"#.to_owned()),
        _ => {}
    }
    let turned = if mood == Mood::Otherwise { 1 } else { 0 };
    let vector = |row: &Vec<i64>| {
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
    let options = Options {
        endpoints: endpoints.iter().map(|endpoint| endpoint.url.clone()).collect(),
        home: 0,
        protocol: Protocol::OpenAi,
        texts: false,
        model: "m".to_owned(),
        token: None,
        roots: None,
        request_time: PATIENT,
        batch_time,
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
    one.set(Mood::All(400));
    assert!(matches!(device(&mut backend), Err(BackendError::Lost(_))));
    one.set(Mood::Well);
    while device(&mut backend).is_err() {}
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
