//! How a command ends when it does not end well: one sentence and an exit code.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use op_dbus_api::about_text;
use op_dbus_daemon::settings::Mistakes;
use serde::Serialize;

use super::terminal::harmless;
use super::{Done, standard};

/// The exit codes, which the help of every other command ends with.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 service not reachable, 6 not configured";

/// Those of the service, which is what the others can't reach: it has no 3.
pub const SERVICE_EXIT_CODES: &str = "\
Exit codes: 0 done as it was told to stop, 1 failed or bus not reachable, 2 wrong usage, 6 not configured";

/// Those of the gateway, which goes on without a bus and tells whoever asks it.
pub const GATEWAY_EXIT_CODES: &str = "\
Exit codes: 0 done as it was told to stop, 1 failed, 2 wrong usage, 6 not configured";

/// Tells a person a sentence, or several on lines of their own. What is told of a command decides nothing about how it
/// ends, and so neither does a standard error that is full or closed.
pub fn tell(sentence: impl fmt::Display) {
    writeln!(io::stderr(), "op-dbus: {}", harmless(sentence)).ok();
}

/// Ends a command with what it prints.
pub fn printed(out: impl AsRef<[u8]>) -> Done {
    write(out).map_err(|error| Failure::output(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn write(out: impl AsRef<[u8]>) -> io::Result<()> {
    let mut output = standard::output();
    output.write_all(out.as_ref())?;
    // Of what a pipe that does not wait had no room for, some may still lie in memory.
    output.flush()
}

/// Prints what is told of a command that does or decides more than that: a reader that has seen enough, and closed its
/// end of the pipe, neither ends it nor changes how it ends. Nor does an output that was closed from the start.
///
/// # Errors
/// When what has a reader can't be written, as on a full disk.
pub fn print(out: impl AsRef<[u8]>) -> Result<(), Failure> {
    match write(out) {
        Err(error) if is_nobody(&error) => Ok(()),
        written => written.map_err(|error| Failure::output(&error)),
    }
}

fn is_nobody(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(libc::EBADF)
}

/// A value as JSON that people can read as well.
pub fn pretty_json(value: &impl Serialize) -> String {
    // Only a map with keys that are not text could fail, and there is none.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The service, a file or a model stands in the way (1).
    pub fn refused(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The command line is wrong (2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// There is no bus, or no service on it (3).
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }

    /// A setting, a model or a library is missing or wrong (6).
    pub fn not_configured(message: impl Into<String>) -> Self {
        Self { code: 6, message: message.into() }
    }

    /// A failed write to standard output. A reader that has seen enough and closed its end of the
    /// pipe is no failure.
    pub fn output(error: &io::Error) -> Self {
        Self::writing(None, error)
    }

    /// The same, to the file of `--output` where there is one.
    pub fn writing(file: Option<&Path>, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self { code: 0, message: String::new() };
        }
        let file = file.map(|file| format!(" to {}", file.display())).unwrap_or_default();
        Self::refused(format!("can't write the output{file}: {error}"))
    }

    /// The same, of a call whose texts begin at number `first` of the input, where `name` has what the text with a
    /// number in the call is called: the service counts from the start of the call, which may have others than those
    /// that follow each other in the input.
    pub fn about_texts(mut self, first: u64, name: impl Fn(u64) -> Option<String>) -> Self {
        if self.code == 1 {
            if let Some(sentence) = about_text(&self.message, &name) {
                self.message = sentence;
            } else if first > 0
                && let Some(text) = name(0)
            {
                self.message = format!("in the call that begins with {text}: {}", self.message);
            }
        }
        self
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same sentence, ending as [`Failure::not_configured`] does.
    pub fn into_not_configured(self) -> Self {
        Self::not_configured(self.message)
    }

    /// Prints the sentence, if there is one, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            tell(&self.message);
        }
        ExitCode::from(self.code)
    }
}

/// Settings that can't be used.
impl From<Mistakes> for Failure {
    fn from(mistakes: Mistakes) -> Self {
        match mistakes.exit_code() {
            2 => Self::usage(mistakes.to_string()),
            _ => Self::not_configured(mistakes.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_from_the_start_of_the_input() {
        let said = |sentence: &str, first: u64| {
            let name = |number: u64| Some(format!("text {}", first + number));
            Failure::refused(sentence).about_texts(first, name).message
        };
        assert_eq!(said("text 950 has 602 tokens", 2049), "text 2999 has 602 tokens");
        let size = "the size of text 2051 in bytes with any prompt is 3, the limit is 2";
        let of_call = "the size of text 2 in bytes with any prompt is 3, the limit is 2";
        assert_eq!(said(of_call, 2049), size);
        let of_all = "in the call that begins with text 2049: the queue is full";
        assert_eq!(said("the queue is full", 2049), of_all);
        assert_eq!(said("text 3 is", 0), "text 3 is");
    }

    #[test]
    fn a_full_disk_is_a_failure() {
        let failure = Failure::output(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(failure.code, 1);
        assert!(failure.message.starts_with("can't write the output: "), "{}", failure.message);
    }
}
