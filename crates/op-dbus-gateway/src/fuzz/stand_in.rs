//! What stands for the service behind a gateway: it answers at once, and looks at what it is asked for.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use op_dbus_api::{Error, ErrorName, Info, ROOT_PATH, option};
use parking_lot::Mutex;
use zbus::connection::Builder;
use zbus::{Guid, OwnedVariant, Variant, interface};

use crate::{Connect, limits};

const LEVEL: &str = "low";
const MODEL: &str = "stand-in";
const SPACE: &str = "stand-in-f32";
/// Numbers in a vector.
const DIMENSIONS: u32 = 2;
/// Tokens that are read of a text, of which each byte is one.
const TOKENS: usize = 16;
/// Texts in a call: so few that requests of a fuzzer take several.
const TEXTS: usize = 8;

type Options = HashMap<String, OwnedVariant>;
type Dictionary = HashMap<&'static str, Variant<'static>>;
type Token = (u32, String, bool, u32, u32);

/// The object for embedding. Clones are the same one.
#[derive(Clone, Default)]
pub struct StandIn {
    wrong: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    /// The way to it: a connection without a bus, whose other end has it.
    pub fn connect(&self) -> Connect {
        let service = self.clone();
        Arc::new(move || {
            let (near, far) = UnixStream::pair().expect("sockets");
            let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
            let far = far.serve_at(ROOT_PATH, service.clone()).serve_at(ROOT_PATH, Administration);
            tokio::spawn(async move {
                // It is there until the gateway has no use for it any more.
                if let Ok(connection) = far.build().await {
                    connection.closed().await;
                }
            });
            Builder::unix_stream(near).p2p()
        })
    }

    /// What it was asked for that a gateway may not ask for.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    fn look(&self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right {
            self.wrong.lock().push(what());
        }
    }

    /// Looks at a call with so many texts, and refuses it where the service would.
    fn admit(&self, texts: usize, options: &Options, tokenizes: bool) -> Result<(), Error> {
        let is_right = (1..=limits::TEXTS_PER_CALL).contains(&texts);
        self.look(is_right, || format!("a call with {texts} texts"));
        for (key, value) in options {
            self.look(is_known(key, value, tokenizes), || format!("{key} is {value:?}"));
        }
        if texts <= TEXTS {
            return Ok(());
        }
        let sentence = format!("the call has {texts} texts, the limit is {TEXTS}");
        Err(Error::new(ErrorName::TooLarge, sentence))
    }

    /// A vector for each text of so many tokens, which has their number in it.
    fn embedded(
        &self,
        tokens: &[usize],
        options: &Options,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        self.admit(tokens.len(), options, false)?;
        let invalid = |sentence: String| Err(Error::new(ErrorName::InvalidArgument, sentence));
        let dimensions = match options.get(option::DIMENSIONS).map(|value| &**value) {
            Some(Variant::U32(dimensions)) => *dimensions,
            _ => DIMENSIONS,
        };
        if !(1..=DIMENSIONS).contains(&dimensions) {
            return invalid(format!("dimensions is {dimensions}, and the model has {DIMENSIONS}"));
        }
        if let Some(empty) = tokens.iter().position(|count| *count == 0) {
            return invalid(format!("text {empty} has no tokens"));
        }
        let long = (0_u32..).zip(tokens).filter(|(_, count)| **count > TOKENS);
        let truncated: Vec<u32> = long.map(|(index, _)| index).collect();
        let cuts = match options.get(option::TRUNCATE).map(|value| &**value) {
            Some(Variant::Str(how)) => how.as_str() != "error",
            _ => true,
        };
        if let (Some(first), false) = (truncated.first(), cuts) {
            let sentence = format!("text {first} has more tokens than the model reads, {TOKENS}");
            return Err(Error::new(ErrorName::TooLong, sentence));
        }
        let vector = |count: &usize| [*count as f32, 1.0].into_iter().take(dimensions as usize);
        let bytes = tokens.iter().flat_map(vector).flat_map(f32::to_le_bytes).collect();
        let (space, model) = (SPACE.to_owned(), MODEL.to_owned());
        let told = tokens.iter().sum::<usize>() as u64;
        let info = Info { space, model, dimensions, truncated, tokens: told, ..Info::default() };
        Ok((bytes, tokens.len() as u32, dimensions, info))
    }
}

/// Whether the service knows such an option, and the gateway has use for it.
fn is_known(key: &str, value: &Variant<'_>, tokenizes: bool) -> bool {
    match (key, value) {
        (option::DEADLINE_MS, Variant::U32(ms)) => {
            u128::from(*ms) <= limits::ANSWER_TIME.as_millis()
        }
        (option::LEVEL, Variant::Str(level)) => level.as_str() == LEVEL,
        (option::EXPECT_SPACE, Variant::Str(space)) => space.as_str() == SPACE,
        (option::TRUNCATE, Variant::Str(how)) => ["error", "start", "end"].contains(&how.as_str()),
        (option::DIMENSIONS, Variant::U32(_))
        | (option::NORMALIZE, Variant::Bool(_))
        | (option::PROMPT, Variant::Str(_)) => true,
        (option::COVERED, Variant::Bool(true)) => tokenizes,
        _ => false,
    }
}

#[interface(name = "org.opdbus.Embedding1.Embedder")]
impl StandIn {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        options: Options,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        // With what stands around each text.
        let tokens: Vec<usize> = texts.iter().map(|text| text.len() + 2).collect();
        self.embedded(&tokens, &options)
    }

    async fn embed_tokens(
        &self,
        tokens: Vec<Vec<u32>>,
        options: Options,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        let tokens: Vec<usize> = tokens.iter().map(Vec::len).collect();
        self.embedded(&tokens, &options)
    }

    async fn tokenize(
        &self,
        texts: Vec<String>,
        options: Options,
    ) -> Result<Vec<Vec<Token>>, Error> {
        let bytes: usize = texts.iter().map(String::len).sum();
        let is_right = texts.len() == 1 || bytes <= limits::TOKENIZED_BYTES_PER_CALL;
        self.look(is_right, || format!("the tokens of {bytes} bytes"));
        self.admit(texts.len(), &options, true)?;
        let tokens = |text: String| {
            let end = text.len() as u32;
            vec![(1, "[CLS]".to_owned(), true, 0, 0), (5, text, false, 0, end)]
        };
        Ok(texts.into_iter().map(tokens).collect())
    }

    #[zbus(property)]
    fn model(&self) -> &str {
        MODEL
    }

    #[zbus(property)]
    fn vector_space(&self) -> &str {
        SPACE
    }
}

/// The object for administration, of which the gateway reads.
struct Administration;

#[interface(name = "org.opdbus.Embedding1.Manager")]
impl Administration {
    async fn list_levels(&self) -> Vec<Dictionary> {
        vec![HashMap::from([
            ("name", LEVEL.into()),
            ("model", MODEL.into()),
            ("installed", true.into()),
            ("dimensions", DIMENSIONS.into()),
        ])]
    }

    async fn list_devices(&self) -> Vec<Dictionary> {
        vec![HashMap::from([("name", "cpu:0".into()), ("in_use", true.into())])]
    }

    async fn get_status(&self) -> Dictionary {
        HashMap::from([("state", "ready".into()), ("level", LEVEL.into()), ("model", MODEL.into())])
    }

    async fn get_settings(&self) -> Vec<Dictionary> {
        vec![HashMap::from([("key", "expect_dimensions".into()), ("value", "any".into())])]
    }

    async fn get_statistics(&self) -> Dictionary {
        HashMap::from([("batches", 1_u64.into())])
    }
}
