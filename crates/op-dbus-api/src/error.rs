//! Errors as they travel on the bus: one name each, one sentence as the message.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use zbus::message::{Header, Message};
use zbus::names;

/// So long is a message at most: the longest of ours that quotes nothing has a few hundred bytes, and a bus ends the
/// connection of whoever answers with more than it carries.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Of a longer one this much is left at each end; a mark between them has the rest.
const END_BYTES: usize = MESSAGE_BYTES_MAX / 2 - 32;

macro_rules! error_names {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal ),+ $(,)?) => {
        /// Which error it is. Scripts match on [`ErrorName::as_str`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorName { $( $(#[$doc])* $variant ),+ }

        impl ErrorName {
            /// Every error that a method of ours may answer with.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),+ ];

            /// The full D-Bus error name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $name ),+ }
            }
        }
    };
}

error_names! {
    /// An argument or an option is wrong.
    InvalidArgument = "org.opdbus.Embedding1.Error.InvalidArgument",
    /// A text, a call, its tokens or its result is beyond a limit, which the message names.
    TooLarge = "org.opdbus.Embedding1.Error.TooLarge",
    /// A text has more tokens than the model reads, and `truncate` is `error`.
    TooLong = "org.opdbus.Embedding1.Error.TooLong",
    /// There is no room now: in the queue, before the deadline, for one more stream, job, direct connection, result or
    /// question of polkit, or for the reply or its vectors. The message says when to come back, where that is known.
    Overloaded = "org.opdbus.Embedding1.Error.Overloaded",
    /// The caller's user has its share already, of the queue or of streams, jobs, direct connections, results, vectors
    /// for replies or questions of polkit.
    QuotaExceeded = "org.opdbus.Embedding1.Error.QuotaExceeded",
    /// The deadline passed before the vectors were there, or the source of texts was silent for `source_silence_s`.
    DeadlineExceeded = "org.opdbus.Embedding1.Error.DeadlineExceeded",
    /// The caller took the call back; or the job was cancelled, or its result was fetched by another call.
    Cancelled = "org.opdbus.Embedding1.Error.Cancelled",
    /// The vector level is `none`.
    Disabled = "org.opdbus.Embedding1.Error.Disabled",
    /// The model is still being loaded.
    NotReady = "org.opdbus.Embedding1.Error.NotReady",
    /// The model is not in the store.
    ModelNotInstalled = "org.opdbus.Embedding1.Error.ModelNotInstalled",
    /// A file of the model is damaged or may be written by others, or its tokenizer can't be used.
    ModelCorrupt = "org.opdbus.Embedding1.Error.ModelCorrupt",
    /// The execution provider or its library can't be used.
    ProviderUnavailable = "org.opdbus.Embedding1.Error.ProviderUnavailable",
    /// The device has no memory for the smallest batch.
    OutOfMemory = "org.opdbus.Embedding1.Error.OutOfMemory",
    /// A text failed twice, no worker can be had, or the model in force can't be used.
    WorkerFailed = "org.opdbus.Embedding1.Error.WorkerFailed",
    /// The caller's index is in another vector space.
    WrongSpace = "org.opdbus.Embedding1.Error.WrongSpace",
    /// The environment or a flag holds this setting; of the level also the setting `model`, which is served in place of
    /// levels.
    Pinned = "org.opdbus.Embedding1.Error.Pinned",
    /// There is no memory for a result, or no file descriptor or thread for its reply or for a direct connection; of a
    /// change: the disk is full or can't be written.
    NoSpace = "org.opdbus.Embedding1.Error.NoSpace",
    /// The service is on its way out.
    ShuttingDown = "org.opdbus.Embedding1.Error.ShuttingDown",
    /// There is no such object, or not for this caller.
    UnknownObject = "org.freedesktop.DBus.Error.UnknownObject",
    /// The caller may not do this.
    AccessDenied = "org.freedesktop.DBus.Error.AccessDenied",
    /// The caller may do this once a password was given, and the call did not allow to ask for one.
    InteractiveAuthorizationRequired =
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    /// A fault of the service itself.
    Failed = "org.freedesktop.DBus.Error.Failed",
}

/// A refusal or failure, ready to be sent or as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    name: ErrorName,
    message: String,
}

impl Error {
    /// An error with its one sentence: what, the limit, what was found, what to do. D-Bus can't carry the
    /// character U+0000, which ends the connection; U+FFFD takes its place. What is quoted may be megabytes of a
    /// call, of which the ends are enough.
    pub fn new(name: ErrorName, message: impl Into<String>) -> Self {
        let message = message.into();
        let message =
            if message.contains('\0') { message.replace('\0', "\u{fffd}") } else { message };
        Self { name, message: ends_of(message) }
    }

    /// Which error it is.
    pub const fn name(&self) -> ErrorName {
        self.name
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Recognises an error of this contract in a failed method call.
    pub fn from_reply(error: &zbus::Error) -> Option<Self> {
        let (name, message) = match error {
            zbus::Error::MethodError(name, message, _) => {
                (name.as_str().to_owned(), message.clone().unwrap_or_default())
            }
            zbus::Error::FDO(e) => {
                let e: &zbus::fdo::Error = e.as_ref();
                (
                    zbus::DBusError::name(e).as_str().to_owned(),
                    zbus::DBusError::description(e).unwrap_or_default().to_owned(),
                )
            }
            _ => return None,
        };
        let known = ErrorName::ALL.iter().find(|known| known.as_str() == name)?;
        Some(Self::new(*known, message))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl zbus::DBusError for Error {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, zbus::DBusError::name(self)).build(&(self.message(),))
    }

    fn name(&self) -> names::ErrorName<'_> {
        names::ErrorName::from_static_str_unchecked(self.name.as_str())
    }

    fn description(&self) -> Option<&str> {
        Some(&self.message)
    }
}

/// A sentence that is about one text of its call, with what `name` has that text called by its number there, for a
/// client whose calls are parts of something larger. Nothing, where a sentence begins neither with a text nor with
/// the size of one, or `name` knows none.
pub fn about_text<N: FromStr>(
    sentence: &str,
    name: impl FnOnce(N) -> Option<String>,
) -> Option<String> {
    let size = "the size of ";
    let (before, text) = sentence.strip_prefix(size).map_or(("", sentence), |text| (size, text));
    let (number, rest) = text.strip_prefix("text ")?.split_once(' ')?;
    Some(format!("{before}{} {rest}", name(number.parse().ok()?)?))
}

/// Whether a sentence is about one text of its call. A call that was [`TooLarge`](ErrorName::TooLarge) by another one
/// may be made of fewer texts.
pub fn is_about_text(sentence: &str) -> bool {
    about_text(sentence, |_: u64| Some(String::new())).is_some()
}

/// How long until a service that is full is to be asked again, by its own sentence (`… try again in 120 ms`).
pub fn retry_after(sentence: &str) -> Option<Duration> {
    let mut words = sentence.rsplit_once("try again in ")?.1.split_whitespace();
    let number = words.next()?.parse().ok()?;
    match words.next()? {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// Of a long message the ends, where it says what is wrong and what to do.
fn ends_of(message: String) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message;
    }
    let start = message.floor_char_boundary(END_BYTES);
    let end = message.ceil_char_boundary(message.len() - END_BYTES);
    format!("{} [… {} bytes …] {}", &message[..start], end - start, &message[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_distinct() {
        let mut seen = std::collections::HashSet::new();
        for name in ErrorName::ALL {
            names::ErrorName::try_from(name.as_str()).expect("a valid D-Bus error name");
            assert!(seen.insert(name.as_str()), "{} stands twice", name.as_str());
        }
    }

    #[test]
    fn a_text_is_called_what_its_client_calls_it() {
        let named =
            |sentence| about_text(sentence, |n: u8| Some(format!("line {}", n.checked_add(7)?)));
        for (sentence, right) in [
            ("text 3 has 602 tokens", Some("line 10 has 602 tokens")),
            ("the size of text 0 in bytes is 2", Some("the size of line 7 in bytes is 2")),
            ("text can't be read", None),
            ("the size of all texts in bytes is 2", None),
            ("the queue is full", None),
            ("text 255 has no name", None),
        ] {
            assert_eq!(named(sentence).as_deref(), right);
        }
        assert!(is_about_text("the size of text 300 in bytes is 2"));
        assert!(!is_about_text("the size of all texts in bytes is 2"));
    }

    #[test]
    fn a_service_that_is_full_says_when_to_come_back() {
        for (sentence, right) in [
            ("wait for earlier calls, or try again in 1868 ms", Some(1868)),
            ("the bus has not answered; try again in 30 s", Some(30_000)),
            ("all users have too many; try again later", None),
            ("try again in a while", None),
        ] {
            assert_eq!(retry_after(sentence), right.map(Duration::from_millis), "{sentence}");
        }
    }

    #[test]
    fn a_message_is_one_that_d_bus_carries() {
        let error = Error::new(ErrorName::ModelCorrupt, "no tensor a\0b");
        assert_eq!(error.message(), "no tensor a\u{fffd}b");
        let quoted = "ü".repeat(1 << 20);
        let error = Error::new(ErrorName::InvalidArgument, format!("no {quoted}; try another"));
        let message = error.message();
        assert!(message.starts_with("no üü") && message.ends_with("üü; try another"));
        assert!(
            message.contains("[… 208") && message.len() <= MESSAGE_BYTES_MAX,
            "{}",
            message.len()
        );
        // The mark has room behind every length, and all of it is sent.
        for length in MESSAGE_BYTES_MAX..MESSAGE_BYTES_MAX + 99 {
            let error = Error::new(ErrorName::TooLarge, format!("{}.", "x".repeat(length)));
            assert!(error.message().len() <= MESSAGE_BYTES_MAX && error.message().ends_with("x."));
        }
        let call = Message::method_call("/", "Embed").build(&()).unwrap();
        let reply = zbus::DBusError::create_reply(&error, &call.header()).unwrap();
        assert_eq!(reply.body().deserialize::<String>().unwrap(), message);
    }
}
