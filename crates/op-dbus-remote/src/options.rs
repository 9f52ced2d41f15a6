//! What the remote provider is told, and by which words.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use op_dbus_engine::foreign::Pooling;

/// Bytes of a token, and of a file with certificates.
const TOKEN_BYTES_MAX: usize = 4096;
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;

/// How servers are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The Open Inference Protocol v2, over HTTP or over gRPC.
    Oip,
    /// OpenAI's `/v1/embeddings`.
    OpenAi,
}

impl Protocol {
    /// Its name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oip => "oip",
            Self::OpenAi => "openai",
        }
    }
}

/// The vectors that are wanted, and of what.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Length of one vector.
    pub dimensions: usize,
    /// How token vectors become one vector, if a graph ends in those.
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalize: bool,
    /// Tokens that the model reads of a text at most, special tokens included.
    pub max_input_tokens: usize,
}

/// What servers are shown to let somebody in. Nothing tells what it is.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A token, without the line's end behind it.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.to_owned())),
            false => Err("the file is to hold one token of ASCII letters and signs".to_owned()),
        }
    }

    /// The value of the header `Authorization`.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// A fleet, and what is wanted of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where servers answer: `https://host:8000` or `grpc://host:8001`, without the path of a protocol.
    pub endpoints: Vec<String>,
    /// The endpoint that is asked as long as it answers.
    pub home: usize,
    /// How they are spoken to.
    pub protocol: Protocol,
    /// Whether texts are sent, and not token ids.
    pub texts: bool,
    /// The model's name there.
    pub model: String,
    /// What they are shown to be let in.
    pub token: Option<Token>,
    /// Certificates that are trusted, in PEM form; none is Mozilla's list.
    pub roots: Option<Vec<u8>>,
    /// How long one request may take.
    pub request_time: Duration,
    /// How long one batch may take, with every endpoint that is tried and all rests.
    pub batch_time: Duration,
    /// How often a batch is tried that endpoints fail while they prove themselves right; 0 counts as 1.
    pub attempts_max: usize,
    /// What is wanted.
    pub shape: Shape,
}

impl Options {
    /// Options from the words of the settings, in which `model` stands for none.
    ///
    /// # Errors
    /// A clause that names the option: one that is not known, or a value or a file that can't be used.
    pub fn read(
        words: &[(String, String)],
        home: usize,
        model: &str,
        shape: Shape,
    ) -> Result<Self, String> {
        let mut options = Self {
            endpoints: Vec::new(),
            home,
            protocol: Protocol::Oip,
            texts: false,
            model: model.to_owned(),
            token: None,
            roots: None,
            request_time: Duration::from_secs(10),
            batch_time: Duration::from_secs(20),
            attempts_max: 2,
            shape,
        };
        for (key, value) in words {
            options.set(key, value).map_err(|why| format!("{key}: {why}"))?;
        }
        let count = options.endpoints.len();
        if home >= count {
            return Err(format!(
                "remote has {count} endpoints, the first of which is number 0, and gpu_device \
                 names number {home}"
            ));
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "endpoints" => {
                let one = |text: &str| text.trim_end_matches('/').to_owned();
                self.endpoints =
                    value.split(',').filter(|text| !text.is_empty()).map(one).collect();
            }
            "protocol" => {
                let known = [Protocol::Oip, Protocol::OpenAi];
                let named = known.into_iter().find(|protocol| protocol.name() == value);
                self.protocol =
                    named.ok_or_else(|| format!("{value} is neither oip nor openai"))?;
            }
            "inputs" => {
                self.texts = match value {
                    "texts" => true,
                    "token-ids" => false,
                    _ => return Err(format!("{value} is neither token-ids nor texts")),
                }
            }
            "model" => value.clone_into(&mut self.model),
            "token_file" => self.token = Some(Token::read(&read(value, TOKEN_BYTES_MAX)?)?),
            "ca_file" => self.roots = Some(read(value, CERTIFICATES_BYTES_MAX)?),
            "request_timeout_s" => self.request_time = seconds(value)?,
            "batch_timeout_s" => self.batch_time = seconds(value)?,
            "attempts_max" => {
                self.attempts_max =
                    value.parse().map_err(|_| format!("{value} is no number of tries"))?;
            }
            _ => return Err("the remote provider has no such option".to_owned()),
        }
        Ok(())
    }
}

fn seconds(value: &str) -> Result<Duration, String> {
    value.parse().map(Duration::from_secs).map_err(|_| format!("{value} is no number of seconds"))
}

/// A pipe would keep us waiting for who writes to it, and a device may have no end.
fn read(path: &str, most: usize) -> Result<Vec<u8>, String> {
    let failed = |error| format!("can't read {path} ({error})");
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{path} is no file"));
    }
    let (mut bytes, file) = (Vec::new(), File::open(path).map_err(failed)?);
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() <= most {
        true => Ok(bytes),
        false => Err(format!("{path} has more than {most} bytes, which at most are read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Clients;

    const SHAPE: Shape =
        Shape { dimensions: 4, pooling: Pooling::Mean, normalize: true, max_input_tokens: 16 };

    fn options(words: &[(&str, &str)], home: usize) -> Result<Options, String> {
        let words: Vec<_> =
            words.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Options::read(&words, home, "low", SHAPE)
    }

    #[test]
    fn words_become_options() {
        let words = [("endpoints", "http://a:1/,https://b"), ("protocol", "openai")];
        let found = options(&words, 1).unwrap();
        assert_eq!(found.endpoints, ["http://a:1", "https://b"]);
        assert_eq!((found.protocol, found.model.as_str()), (Protocol::OpenAi, "low"));
        assert!(!found.texts);
        let words = [("endpoints", "grpcs://a"), ("inputs", "texts")];
        assert!(options(&words, 0).unwrap().texts);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (words, home, expected) in [
            (("endpoints", "http://a"), 1, "remote has 1 endpoints"),
            (("endpoint", "http://a"), 0, "endpoint: the remote provider has no such option"),
            (("token_file", "/does/not/exist"), 0, "token_file: can't read /does/not/exist"),
            (("protocol", "grpc"), 0, "protocol: grpc is neither"),
            (("inputs", "text"), 0, "inputs: text is neither"),
        ] {
            let message = options(&[words], home).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        for path in ["/dev/null", "/proc"] {
            let message = options(&[("ca_file", path)], 0).unwrap_err();
            assert_eq!(message, format!("ca_file: {path} is no file"));
        }
    }

    #[test]
    fn a_token_is_one_word_and_never_quoted() {
        let token = Token::read(b"secret\n").unwrap();
        assert_eq!(token.authorization(), "Bearer secret");
        for wrong in [&b""[..], b"two words", b"line\nline", b"\xff\xfe"] {
            let message = Token::read(wrong).unwrap_err();
            assert!(!message.contains("two") && !message.contains("line"), "{message}");
        }
        let found = options(&[("endpoints", "http://a,grpc://b")], 0).unwrap();
        let options = Options { token: Some(token), ..found };
        let told = format!("{options:?} {:?}", Clients::new(&options).unwrap());
        assert!(!told.contains("secret"), "{told}");
    }
}
