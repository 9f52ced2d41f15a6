//! Servers that take texts: what they are sent, what of it is cut, and what can't be sent.

use std::collections::HashMap;

use op_dbus_api::ErrorName;

use super::{fleet, refusal, serves};
use crate::harness::Outcome;
use crate::harness::client::{Options, refused};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::fleet::{Server, compiled};
use crate::harness::golden::cosine;
use crate::harness::registry::tests;

tests! {
    triton_takes_texts_over_http_and_grpc: [Bus, Low, Runtime, Triton],
    a_server_that_cuts_texts_sooner_is_refused: [Bus, Low, Runtime, Triton],
    llama_cpp_takes_texts: [Bus, Medium, Fleet],
    a_text_that_was_cut_within_a_word_is_left_to_the_cpu: [Bus, Medium, Fleet],
    who_takes_something_else_is_told_with_the_setting: [Bus, Low, Runtime, Triton],
}

const LOW: &str = "paraphrase-MiniLM-L3-v2";

/// A text that is longer than any model reads, with what a tokenizer changes and what it lacks.
fn long() -> String {
    "Don't PANIC: naïve 🍕 café-goers weren't re-embedding 漢字, were they? ".repeat(100)
}

/// Whether the daemon's vectors of hard texts are those of this machine, cut at the same place.
async fn agrees(daemon: &Daemon, level: &str) -> Outcome {
    let (_bus, _setup, here) = Setup::real(level)?.alone().await?;
    let texts = [long(), "🍕".to_owned(), "[SEP] and [UNK] ##s".to_owned(), "I do not".to_owned()];
    let found = daemon.client().packed(&texts, HashMap::new()).await?;
    assert_eq!(found.info::<Vec<u32>>("truncated")?, [0]);
    let expected = here.client().vectors(&texts).await?;
    for ((found, expected), text) in found.vectors.iter().zip(&expected).zip(&texts) {
        let cosine = cosine(found, expected);
        assert!(cosine >= 0.9999, "{text:.40}: {cosine}");
    }
    here.stop().await
}

async fn triton_takes_texts_over_http_and_grpc() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton_of_texts(&graph, LOW, 128).await?;
    for url in [triton.url(), &triton.grpc_url()] {
        let setup = fleet("low", "oip", &[url])?.setting("providers.remote.inputs", "texts");
        let (_bus, _setup, daemon) = setup.alone().await?;
        serves(&daemon, "low").await?;
        agrees(&daemon, "low").await?;
        let said = daemon.process.stderr();
        assert!(said.contains("texts leave this machine") && !said.contains("PANIC"), "{said}");
        daemon.stop().await?;
    }
    Ok(())
}

async fn a_server_that_cuts_texts_sooner_is_refused() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton_of_texts(&graph, LOW, 127).await?;
    let setup = fleet("low", "oip", &[triton.url()])?.setting("providers.remote.inputs", "texts");
    let message = refusal(&setup).await?;
    assert!(message.contains("it cuts texts before they have 128 tokens"), "{message}");
    Ok(())
}

async fn llama_cpp_takes_texts() -> Outcome {
    let folder = tempfile::Builder::new().prefix("llama-").tempdir()?;
    let llama = Server::llama(folder.path(), "all-MiniLM-L6-v2").await?;
    let setup = fleet("medium", "openai", &[llama.url()])?;
    let (_bus, _setup, daemon) = setup.setting("providers.remote.inputs", "texts").alone().await?;
    serves(&daemon, "medium").await?;
    daemon.stop().await
}

async fn a_text_that_was_cut_within_a_word_is_left_to_the_cpu() -> Outcome {
    let folder = tempfile::Builder::new().prefix("llama-").tempdir()?;
    let llama = Server::llama(folder.path(), "all-MiniLM-L6-v2").await?;
    let setup = fleet("medium", "openai", &[llama.url()])?;
    let setup = setup.setting("providers.remote.inputs", "texts");
    // Three pieces each, of which 254 are no whole number of words.
    let texts = ["unembeddable ".repeat(200)];
    let start = || Options::from([("truncate", "start".into())]);
    let (_bus, setup, daemon) = setup.alone().await?;
    let refusal = daemon.client().packed(&texts, start()).await;
    let message = refused(refusal, ErrorName::WorkerFailed)?;
    assert!(message.contains("one that was cut within a word"), "{message}");
    assert!(!message.contains("unembed"), "{message}");
    daemon.client().embedder.embed("the next").await?;
    daemon.stop().await?;
    let setup = setup.setting("offload", "auto").setting("fallback", "cpu");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let reply = daemon.client().packed(&texts, start()).await?;
    assert_eq!(reply.info::<String>("device")?, "cpu:0");
    daemon.stop().await
}

async fn who_takes_something_else_is_told_with_the_setting() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton_of_texts(&graph, LOW, 128).await?;
    for url in [triton.url(), &triton.grpc_url()] {
        let message = refusal(&fleet("low", "oip", &[url])?).await?;
        let said = "wants its input text as BYTES, which texts are; set inputs in [providers.remote] to \
                    texts";
        assert!(message.contains(said), "{message}");
    }
    Ok(())
}
