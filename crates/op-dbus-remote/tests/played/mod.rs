//! Endpoints that are played here, and a backend that has nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use op_dbus_engine::foreign::Pooling;
use op_dbus_engine::{Backend, BackendError, Batch, Tokenizer};
use op_dbus_remote::{Options, Protocol, RemoteBackend, Shape};

pub const DIMENSIONS: usize = 4;
pub const TOKENS_MAX: usize = 16;
/// Requests of one trial.
pub const TRIAL: usize = 2;
const BATCH: Batch<'_> = Batch { ids: &[101, 777, 102], lengths: &[3] };

/// How an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    /// As it should.
    Well,
    /// With the vectors of another model.
    Otherwise,
    /// With this status to all but the trial batch.
    Only(u16),
    /// With this status to everything.
    All(u16),
    /// With this status to so many batches that are no trial.
    First(usize, u16),
    /// With what the caller's text may be, where vectors should be.
    Quoting,
    /// With vectors of this number alone to all but the trial batch.
    Number(f32),
    /// With this status to all but the trial batch, and that it is to be asked again in so many seconds.
    Later(u16, u64),
    /// Not at all.
    Silent,
    /// By hanging up, once or always.
    HangsUp { once: bool },
    /// With vectors of no more than so many token ids of a row.
    Cuts(usize),
    /// With this status to batches of more rows than that.
    AtMost(usize, u16),
    /// After this time to batches with a text of as many tokens as the model reads.
    SlowIfLong(Duration),
    /// With this status to batches with a row that begins so.
    Not(i64, u16),
}

/// An endpoint, whose mood can change.
pub struct Endpoint {
    pub url: String,
    told: Arc<Told>,
}

/// What an endpoint is told, and has to tell.
struct Told {
    mood: Mutex<Mood>,
    trials: AtomicUsize,
    batches: AtomicUsize,
}

impl Endpoint {
    pub fn new(mood: Mood) -> Self {
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

    pub fn set(&self, mood: Mood) {
        *self.told.mood.lock().unwrap() = mood;
    }

    /// Trial batches, and batches of callers, that it was sent.
    pub fn asked(&self) -> (usize, usize) {
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
        if let Mood::HangsUp { once } = mood {
            if once {
                *told.mood.lock().unwrap() = Mood::Well;
            }
            return Ok(());
        }
        if let (Mood::First(more, status), false) = (mood, is_trial(&rows)) {
            let next = if more > 1 { Mood::First(more - 1, status) } else { Mood::Well };
            *told.mood.lock().unwrap() = next;
        }
        if mood == Mood::Silent {
            // Until the other end has had enough.
            reader.read_exact(&mut [0])?;
        }
        let is_long = rows.iter().any(|row| row.len() + 2 == 2 * TOKENS_MAX);
        if let (Mood::SlowIfLong(time), true) = (mood, is_long) {
            stream.set_read_timeout(Some(time))?;
            if reader.read(&mut [0]).is_ok() {
                // The other end has had enough.
                return Ok(());
            }
            stream.set_read_timeout(None)?;
        }
        let (status, body) = answer(&rows, mood);
        let length = body.len();
        let later = match mood {
            Mood::Later(_, seconds) => format!("Retry-After: {seconds}\r\n"),
            _ => String::new(),
        };
        write!(
            &mut &*stream,
            "HTTP/1.1 {status} x\r\n{later}Content-Length: {length}\r\n\r\n{body}"
        )?;
    }
}

fn rows(request: &str) -> Vec<Vec<i64>> {
    let request: serde_json::Value = serde_json::from_str(request).unwrap();
    let texts: Result<Vec<String>, _> = serde_json::from_value(request["input"].clone());
    match texts {
        Ok(texts) => texts.iter().map(|text| ids(text)).collect(),
        Err(_) => serde_json::from_value(request["input"].clone()).unwrap(),
    }
}

/// One for each letter, as the tokenizer here has them; no trial has an x.
fn ids(text: &str) -> Vec<i64> {
    let letters = text.bytes().filter(|letter| *letter != b' ');
    letters.map(|letter| if letter == b'x' { 101 } else { 2 }).collect()
}

/// Those of callers have other ids here.
fn is_trial(rows: &[Vec<i64>]) -> bool {
    rows.iter().flatten().all(|id| *id <= 12)
}

/// A vector for each row, which depends on its first token and, if only that is odd, on its length.
fn answer(rows: &[Vec<i64>], mood: Mood) -> (u16, String) {
    let is_trial = is_trial(rows);
    match mood {
        Mood::All(status) => return (status, "said words".to_owned()),
        Mood::Only(status) | Mood::First(_, status) | Mood::Later(status, _) if !is_trial => {
            return (status, "said words".to_owned());
        }
        Mood::AtMost(most, status) if rows.len() > most => {
            return (status, "said words".to_owned());
        }
        Mood::Not(first, status) if rows.iter().any(|row| row[0] == first) => {
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
        let read = if let Mood::Cuts(most) = mood { row.len().min(most) } else { row.len() };
        let mut vector = vec![0.0; DIMENSIONS];
        vector[(row[0] as usize + turned) % DIMENSIONS] = 1.0;
        if is_trial && read % 2 == 1 {
            vector[(row[0] as usize + turned + 1) % DIMENSIONS] = 0.1;
        }
        vector
    };
    let data: Vec<_> =
        rows.iter().map(|row| serde_json::json!({"embedding": vector(row)})).collect();
    (200, serde_json::json!({ "data": data }).to_string())
}

/// Longer than anything takes that comes at all.
pub const PATIENT: Duration = Duration::from_secs(120);
/// For a batch that nobody takes.
pub const SHORT: Duration = Duration::from_secs(1);

pub fn backend(
    endpoints: &[&Endpoint],
    batch_time: Duration,
) -> Result<RemoteBackend, BackendError> {
    hasty(endpoints, PATIENT, batch_time)
}

pub fn options(endpoints: &[&Endpoint], batch_time: Duration) -> Options {
    Options {
        endpoints: endpoints.iter().map(|endpoint| endpoint.url.clone()).collect(),
        home: 0,
        protocol: Protocol::OpenAi,
        texts: false,
        model: "m".to_owned(),
        token: None,
        roots: None,
        request_time: PATIENT,
        batch_time,
        attempts_max: 2,
        shape: Shape {
            dimensions: DIMENSIONS,
            pooling: Pooling::Mean,
            normalize: true,
            max_input_tokens: TOKENS_MAX,
        },
    }
}

/// A backend that sends texts, in which each letter is a token. Its model reads twice as many.
pub fn of_texts(endpoints: &[&Endpoint]) -> RemoteBackend {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tiny-bert/tokenizer.json");
    let tokenizer = Tokenizer::from_bytes(&std::fs::read(path).unwrap(), 2 * TOKENS_MAX).unwrap();
    let options = Options { texts: true, ..options(endpoints, PATIENT) };
    RemoteBackend::load(options, || Ok(tokenizer)).unwrap()
}

/// A backend that waits no longer for an endpoint than `request_time`.
pub fn hasty(
    endpoints: &[&Endpoint],
    request_time: Duration,
    batch_time: Duration,
) -> Result<RemoteBackend, BackendError> {
    let options = Options { request_time, ..options(endpoints, batch_time) };
    RemoteBackend::load(options, || unreachable!("no text is sent"))
}

/// The device that computes the batch.
pub fn device(backend: &mut RemoteBackend) -> Result<String, BackendError> {
    let mut out = [f32::NAN; DIMENSIONS];
    backend.run(&BATCH, &mut out)?;
    assert_eq!(out, [0.0, 1.0, 0.0, 0.0]);
    Ok(backend.description().device.clone())
}
