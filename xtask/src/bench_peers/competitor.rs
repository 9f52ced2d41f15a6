//! One competitor: a process that answers a JSON object a line, ours or another library's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::last_line;

/// How long a library may take to load a model, or to embed a file once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Whom to start.
pub struct Entry {
    /// Whose it is: `op-dbus`, or the peer's Python module.
    pub library: &'static str,
    /// What people call it.
    pub title: &'static str,
    pub precision: &'static str,
    /// What `export.py` has to make for it.
    pub exports: &'static [&'static str],
}

/// How a library is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Batches that are computed at once.
    pub streams: usize,
    /// Threads that compute one of them.
    pub threads: usize,
    /// Padded tokens of a batch; 0 is the library's own way.
    pub batch_tokens: usize,
}

/// A library that is loaded and waits for questions.
pub struct Competitor {
    pub entry: &'static Entry,
    /// Name and version, as it says itself.
    pub library: String,
    /// Whether it has a batching of its own.
    pub own: bool,
    pub setting: Setting,
    log: std::path::PathBuf,
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl Competitor {
    /// Starts `command`, whose errors go to a file in `logs`, and waits until it is loaded.
    ///
    /// # Errors
    /// What it said last, when it ended instead.
    pub fn start(entry: &'static Entry, mut command: Command, logs: &Path) -> Result<Self, String> {
        let log = logs.join(format!("{}-{}.txt", entry.library, entry.precision));
        let errors = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(|error| format!("can't be started: {error}"))?;
        let (Some(questions), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("has no standard streams".to_owned());
        };
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let setting = Setting { streams: 1, threads: 1, batch_tokens: 0 };
        let (library, own) = (String::new(), false);
        let mut started = Self { entry, library, own, setting, log, child, questions, answers };
        let hello = started.answer()?;
        hello["library"].as_str().unwrap_or_default().clone_into(&mut started.library);
        started.own = hello["own"] == true;
        Ok(started)
    }

    fn answer(&mut self) -> Result<Value, String> {
        let line = self.answers.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("no answer in {} s", ANSWER_TIMEOUT.as_secs())
            }
            RecvTimeoutError::Disconnected => {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                last_line(&said, "it ended without a word")
            }
        })?;
        let answer: Value = serde_json::from_str(&line).map_err(|e| format!("{line}: {e}"))?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }

    /// Asks one question.
    ///
    /// # Errors
    /// What the library said instead of an answer.
    pub fn ask(&mut self, question: &Value) -> Result<Value, String> {
        // A process that is gone shows at the answer, with what it said.
        writeln!(self.questions, "{question}").ok();
        self.answer()
    }

    /// Uses other settings from now on.
    ///
    /// # Errors
    /// As [`Competitor::ask`].
    pub fn set(&mut self, setting: Setting) -> Result<(), String> {
        let Setting { streams, threads, batch_tokens } = setting;
        self.ask(&json!({ "do": "set", "streams": streams, "threads": threads,
            "batch_tokens": batch_tokens }))?;
        self.setting = setting;
        Ok(())
    }

    /// Embeds a file for `seconds`, once at least.
    ///
    /// # Errors
    /// As [`Competitor::ask`].
    pub fn texts_per_s(&mut self, texts: &Path, seconds: f64) -> Result<f64, String> {
        let answer = self.ask(&json!({ "do": "time", "texts": texts, "seconds": seconds }))?;
        match (answer["texts"].as_f64(), answer["seconds"].as_f64()) {
            (Some(texts), Some(seconds)) if seconds > 0.0 => Ok(texts / seconds),
            _ => Err(format!("answered {answer}")),
        }
    }

    /// The vectors of a file's lines, by row.
    ///
    /// # Errors
    /// As [`Competitor::ask`].
    pub fn vectors(&mut self, texts: &Path, to: &Path) -> Result<Vec<Vec<f32>>, String> {
        let answer = self.ask(&json!({ "do": "vectors", "texts": texts, "to": to }))?;
        let bytes = std::fs::read(to).map_err(|error| format!("{}: {error}", to.display()))?;
        let values: Vec<f32> =
            bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        let dimensions = answer["dimensions"].as_u64().unwrap_or(0) as usize;
        if dimensions == 0 || !values.len().is_multiple_of(dimensions) {
            return Err(format!("{} values for {answer}", values.len()));
        }
        Ok(values.chunks(dimensions).map(<[f32]>::to_vec).collect())
    }

    /// Ends the process; nothing can be asked any more.
    pub fn stop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { streams, threads, batch_tokens } = self;
        match batch_tokens {
            0 => write!(f, "its own"),
            _ => write!(f, "{streams} × {threads}, {batch_tokens}"),
        }
    }
}
