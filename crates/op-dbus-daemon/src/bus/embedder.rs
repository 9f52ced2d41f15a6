//! `org.opdbus.Embedding1.Embedder`: texts in, vectors out. Its documentation for callers is in
//! `dbus-policy/interfaces/`.

use std::time::Instant;

use op_dbus_api::{INLINE_REPLY_BYTES_MAX, Info, option};
use op_dbus_engine::{Excess, Inputs, Limits};
use zbus::interface;
use zbus::message::Header;
use zbus::{Connection, OwnedFd, OwnedObjectPath};

use super::bulk::{Memory, in_time, while_wanted};
use super::caller::Caller;
use super::calls::{Asked, Calls};
use super::facts::Facts;
use super::many::Many;
use super::options::{self, Given, Wanted};
use super::pulse::Refusal;
use super::reply::{
    AllDoubles, Doubles, Embedded, Form, Packed, TOKEN_HELD, Token, best, token_bytes,
    token_bytes_max, tokens, wire,
};
use super::unread::Reply;
use crate::service::Options;

/// The bus object for embedding.
pub struct Embedder {
    calls: Calls,
}

impl Embedder {
    /// An object that answers from `calls`.
    pub fn new(calls: Calls) -> Self {
        Self { calls }
    }

    fn facts(&self) -> Facts {
        Facts::of(&self.calls.service.now())
    }
}

#[interface(name = "org.opdbus.Embedding1.Embedder", introspection_docs = false)]
impl Embedder {
    #[zbus(out_args("vector"))]
    async fn embed(
        &self,
        text: String,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Doubles<Vec<f32>>, Refusal> {
        let work = async move |calls: Calls, caller| {
            let asked = Asked::plain(vec![text], Form::Doubles);
            calls.embed(&caller, asked, Embedded::only).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("vectors"))]
    async fn embed_batch(
        &self,
        texts: Many<String>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<AllDoubles, Refusal> {
        let work = async move |calls: Calls, caller| {
            let asked = Asked::plain(texts.all()?, Form::Doubles);
            calls.embed(&caller, asked, Embedded::doubles).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("vectors", "rows", "dimensions", "info"))]
    async fn embed_packed(
        &self,
        texts: Many<String>,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Packed, u32, u32, Info), Refusal> {
        let work = async move |calls: Calls, caller| {
            let Wanted { options, encoding, .. } = options::parse(&options.0, &[], Instant::now())?;
            let asked =
                Asked { inputs: texts.all()?.into(), options, form: Form::Packed(encoding) };
            calls.embed(&caller, asked, |all| all.packed(encoding)).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("vectors", "rows", "dimensions", "info"))]
    async fn embed_to_fd(
        &self,
        texts: Many<String>,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Memory, u32, u32, Info), Refusal> {
        let work = async move |calls: Calls, caller| {
            let wanted = options::parse(&options.0, &[option::FORMAT], Instant::now())?;
            calls.embed_to_fd(&caller, texts.all()?, wanted).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("vectors", "rows", "dimensions", "info"))]
    async fn embed_from_fd(
        &self,
        source: OwnedFd,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Memory, u32, u32, Info), Refusal> {
        let work = async move |calls: Calls, caller| {
            let wanted = options::parse(&options.0, option::OF_FDS, Instant::now())?;
            calls.embed_from_fd(&caller, source.into(), wanted).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("job"))]
    async fn start_embed_from_fd(
        &self,
        source: OwnedFd,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Refusal> {
        let work = async move |calls: Calls, caller| {
            let wanted = options::parse(&options.0, option::OF_FDS, Instant::now())?;
            calls.start_embed_from_fd(caller, source.into(), wanted).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("socket"))]
    async fn open_direct(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedFd, Refusal> {
        let work = async move |calls: Calls, caller: Caller| {
            calls.room(&caller, Reply::Descriptor, None).await?;
            Ok(calls.open_direct(caller)?.into())
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("vectors", "rows", "dimensions", "info"))]
    async fn embed_tokens(
        &self,
        tokens: Many<Vec<u32>>,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Packed, u32, u32, Info), Refusal> {
        let work = async move |calls: Calls, caller| {
            let Wanted { options, encoding, .. } = options::parse(&options.0, &[], Instant::now())?;
            let inputs = Inputs::Tokens(tokens.within(Excess::Lists)?);
            let asked = Asked { inputs, options, form: Form::OfTokens(encoding) };
            calls.embed(&caller, asked, |all| all.packed(encoding)).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("tokens"))]
    async fn tokenize(
        &self,
        texts: Many<String>,
        options: Given<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Vec<Token>>, Refusal> {
        let work = async move |calls: Calls, caller: Caller| {
            let Wanted { options, covered, .. } =
                options::parse_for_tokens(&options.0, Instant::now())?;
            let texts = texts.all()?;
            let (count, bytes) = (texts.len(), texts.iter().map(String::len).sum());
            let served = calls.serving(&caller, (count, bytes), options.level, options.deadline);
            let served = served.await?;
            let prompts = served.prompt_bytes(options.prompt.as_deref())?.saturating_mul(count);
            let most = TOKEN_HELD * token_bytes_max(count, bytes.saturating_add(prompts));
            calls.room_on_line(&caller, most, options.deadline).await?;
            let work = served.tokenize(caller.uid, texts, options.prompt.as_deref());
            let what = "all texts were made tokens of; allow more time or send less";
            let pieces = async { Ok(work.await?) };
            let pieces = in_time(&caller, options.deadline, what, pieces).await?;
            let tokens = tokens(pieces, covered);
            let bytes = token_bytes(&tokens)?;
            calls.room(&caller, Reply::Tokens(bytes), options.deadline).await?;
            Ok(tokens)
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("cosine"))]
    async fn similarity(
        &self,
        first: String,
        second: String,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<f64, Refusal> {
        let work = async move |calls: Calls, caller| {
            let asked = Asked::plain(vec![first, second], Form::Ranks(1));
            let cosines = calls.embed(&caller, asked, |all| all.cosines()).await?;
            Ok(cosines.first().copied().unwrap_or_default())
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("ranks"))]
    #[expect(clippy::too_many_arguments, reason = "the bus's three, and two of zbus's own")]
    async fn rank(
        &self,
        query: String,
        candidates: Many<String>,
        count: u32,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<(u32, f64)>, Refusal> {
        let work = async move |calls: Calls, caller| {
            let candidates = candidates.all()?;
            let form = Form::Ranks(candidates.len().min(count as usize));
            let texts = std::iter::once(query).chain(candidates).collect();
            let ranks = |all: Embedded| best(&all.cosines(), count);
            calls.embed(&caller, Asked::plain(texts, form), ranks).await
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("counts"))]
    async fn count_tokens(
        &self,
        texts: Many<String>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<u32>, Refusal> {
        let work = async move |calls: Calls, caller: Caller| {
            let texts = texts.all()?;
            let size = (texts.len(), texts.iter().map(String::len).sum());
            let served = calls.serving(&caller, size, None, None).await?;
            let bytes = texts.len() * size_of::<u32>();
            calls.room_on_line(&caller, bytes, None).await?;
            let work = served.count_tokens(caller.uid, texts);
            let counts = while_wanted(&caller, None, async { Ok(work.await?) }).await?;
            calls.room(&caller, Reply::Inline(bytes), None).await?;
            Ok(counts)
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(property)]
    fn vector_level(&self) -> String {
        self.facts().vector_level
    }

    #[zbus(property)]
    fn model(&self) -> String {
        self.facts().model
    }

    #[zbus(property)]
    fn vector_space(&self) -> String {
        self.facts().vector_space
    }

    #[zbus(property)]
    fn dimensions(&self) -> u32 {
        self.facts().dimensions
    }

    #[zbus(property)]
    fn max_input_tokens(&self) -> u32 {
        self.facts().max_input_tokens
    }

    #[zbus(property)]
    fn execution_provider(&self) -> String {
        self.facts().execution_provider
    }

    #[zbus(property)]
    fn requested_execution_provider(&self) -> String {
        self.facts().requested_execution_provider
    }

    #[zbus(property)]
    fn fallback_reason(&self) -> String {
        self.facts().fallback_reason
    }

    #[zbus(property)]
    fn precision(&self) -> String {
        self.facts().precision
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.facts().state.as_str().to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn inline_reply_bytes_max(&self) -> u32 {
        INLINE_REPLY_BYTES_MAX
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn texts_per_call_max(&self) -> u32 {
        wire(Limits::default().texts_per_call_max)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn text_bytes_max(&self) -> u32 {
        wire(Limits::default().text_bytes_max)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> String {
        super::VERSION.to_owned()
    }
}

impl Asked {
    fn plain(texts: Vec<String>, form: Form) -> Self {
        Self { inputs: texts.into(), options: Options::default(), form }
    }
}
