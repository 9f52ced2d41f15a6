//! What needs the tokenizer alone: counts and tokens of texts.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Engine;
use crate::admission::{Claim, tokens_of_memory};
use crate::call::Priority;
use crate::config::Limits;
use crate::error::Error;
use crate::prepare::{Preparer, chunks, is_small, look, weighed};
use crate::tokenizer::{EncodeError, Piece, Tokenizer};

impl Engine {
    /// Tokens of each text of user `uid` before truncation, special tokens included.
    ///
    /// # Errors
    /// `TooLarge`, `Untokenizable`, `QuotaExceeded`, `Overloaded`, `ShuttingDown`.
    pub async fn count_tokens(&self, uid: u32, texts: Vec<String>) -> Result<Vec<u32>, Error> {
        let count = |tokenizer: &Tokenizer, text: &str| {
            tokenizer.count(text).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
        };
        let counted = self.look(uid, ("", texts), count, false).await;
        counted.inspect_err(|error| self.scheduler().stats.failed(error))
    }

    /// The tokens of each text of user `uid` with `prefix` before it, before truncation, special tokens included.
    ///
    /// # Errors
    /// As [`count_tokens`](Self::count_tokens); `TooLarge` already beyond the size of one text,
    /// because a piece takes many times what its text does.
    pub async fn tokenize(
        &self,
        uid: u32,
        texts: Vec<String>,
        prefix: &str,
    ) -> Result<Vec<Vec<Piece>>, Error> {
        let pieces = self.look(uid, (prefix, texts), Tokenizer::pieces, true).await;
        pieces.inspect_err(|error| self.scheduler().stats.failed(error))
    }

    /// What `one` makes of each text with `prefix` before it, without embedding any. Texts that take their time have
    /// a permit for the memory that they take. Where what is made of a text takes many times as much, a call is no
    /// larger than one text may be, and one of a user is looked at after the other.
    async fn look<T: Send + 'static>(
        &self,
        uid: u32,
        (prefix, mut texts): (&str, Vec<String>),
        one: fn(&Tokenizer, &str) -> Result<T, EncodeError>,
        takes_memory: bool,
    ) -> Result<Vec<T>, Error> {
        let inner = &*self.0;
        let Limits { text_bytes_max, call_bytes_max, .. } = inner.limits;
        let bytes_max =
            if takes_memory { call_bytes_max.min(text_bytes_max) } else { call_bytes_max };
        inner.check_size(&texts, prefix.len(), bytes_max)?;
        texts.iter_mut().for_each(|text| text.insert_str(0, prefix));
        if inner.admission.is_closed() {
            return Err(Error::ShuttingDown);
        }
        let tokenizer = &inner.preparer.tokenizer;
        if is_small(&texts, tokenizer) {
            return look(tokenizer, 0, &texts, one, || true);
        }
        let tokens = tokens_of_memory(texts.iter().map(String::len).sum()).max(texts.len());
        let claim = Claim { work: 0, ..Claim::new(uid, tokens, Priority::Bulk) };
        let permit = self.admit(claim, None, None)?.of_a_look();
        let tasks = inner.tokenizer_threads.of_user(uid);
        let alone = if takes_memory { Some(tasks.alone().await?) } else { None };
        // Those of a caller who is gone as well: a text that was begun is made tokens of to its end.
        let held = Arc::new((permit, alone));
        let (mut all, mut results) = (Vec::with_capacity(texts.len()), Vec::new());
        // A text is one part where it is told what each token stands for.
        let in_parts = !takes_memory;
        let is_measured = move |text: &String, of: &Tokenizer| of.is_measured(text, in_parts);
        let is_heavy = move |text: &String, of: &Tokenizer| of.is_heavy(text, in_parts);
        for (first, texts) in chunks(texts) {
            let to = (tokenizer, &tasks);
            let (texts, is_heavy) =
                weighed(to, texts, is_measured, is_heavy, Arc::clone(&held)).await?;
            let (done, result) = oneshot::channel();
            let held = Arc::clone(&held);
            let task = move |preparer: &Preparer| {
                let found = look(&preparer.tokenizer, first, &texts, one, || !done.is_closed());
                drop(held);
                // The caller may be gone: then nobody wants to know.
                let _ = done.send(found);
            };
            tasks.send(Box::new(task), is_heavy).await?;
            results.push(result);
        }
        for result in results {
            all.extend(result.await.unwrap_or(Err(Error::ShuttingDown))?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::sim::SimBackend;
    use crate::tokenizer_threads::Heavy;
    use crate::{Call, EngineConfig, ModelShape, Pool};

    use super::*;

    /// One that never cuts a text.
    fn tokenizer() -> Tokenizer {
        let json = br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"x":0,"a":1},"unk_token":"x"}}"#;
        Tokenizer::from_bytes(json, 8).unwrap()
    }

    /// One that makes 4,000 letters of some of two bytes.
    fn blows_up() -> Tokenizer {
        let content = ("b".repeat(99) + " ").repeat(40);
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {"type": "Replace", "pattern": {"String": "ж"}, "content": content},
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordPiece", "vocab": {"b": 0, "##b": 1}, "unk_token": "b",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes(), 8).unwrap()
    }

    fn engine(tokenizer: Tokenizer) -> Engine {
        let pool = Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(8)))));
        let config = EngineConfig { tokenizer_threads: 2, ..EngineConfig::default() };
        Engine::start(tokenizer, ModelShape::new(8, 8), vec![pool], config).unwrap()
    }

    /// One of the three ways to have a text tokenized.
    async fn ask(engine: Engine, way: usize, uid: u32, text: String) -> Result<(), Error> {
        let texts = vec![text];
        match way {
            0 => {
                let call = Call { uid, inputs: texts.into(), ..Call::default() };
                engine.embed(call).await.map(drop)
            }
            1 => engine.count_tokens(uid, texts).await.map(drop),
            _ => engine.tokenize(uid, texts, "").await.map(drop),
        }
    }

    /// Asks for `heavy` in these ways, and for `light` as another user, while a heavy text is under way.
    async fn ask_for_both<const N: usize>(
        engine: &Engine,
        (ways, heavy): ([usize; N], &str),
        light: &str,
    ) {
        let another = Heavy::taken().await;
        let waiting = ways.map(|way| tokio::spawn(ask(engine.clone(), way, 1, heavy.to_owned())));
        tokio::task::yield_now().await;
        for way in 0..3 {
            ask(engine.clone(), way, 2, light.to_owned()).await.unwrap();
        }
        let finished = waiting.each_ref().map(tokio::task::JoinHandle::is_finished);
        assert_eq!(finished, [false; N]);
        drop(another);
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn texts_that_cannot_be_cut_keep_other_users_waiting_for_no_thread() {
        let (heavy, light) = ("a".repeat(256 << 10), "a".repeat(3 << 10));
        let ways = [0, 0, 0, 1, 1, 1, 2];
        ask_for_both(&engine(tokenizer()), (ways, &heavy), &light).await;
    }

    #[tokio::test]
    async fn a_short_text_that_is_blown_up_waits_and_one_that_only_might_be_does_not() {
        let (heavy, light) = ("ж".repeat(100), "é".repeat(780));
        ask_for_both(&engine(blows_up()), ([0, 1, 2], &heavy), &light).await;
    }
}
