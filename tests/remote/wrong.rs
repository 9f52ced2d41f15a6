//! Fleets that serve another model, or the right one otherwise than this machine: refused with the cosine that
//! was seen.

use super::{Far, fleet, refusal};
use crate::harness::Outcome;
use crate::harness::fleet::{Ports, Server, compiled};
use crate::harness::registry::tests;

tests! {
    another_model_is_refused_with_the_cosine: [Bus, Low, Medium],
    another_model_in_triton_is_refused_with_the_cosine: [Bus, Low, Medium, Runtime, Triton],
    who_counts_padding_is_refused_with_the_cosine: [Bus, Low, Runtime, Triton],
    who_cuts_token_ids_is_refused: [Bus, Low, Runtime, Triton],
    who_normalises_otherwise_is_refused: [Bus, Low, Fleet],
}

/// The cosine that a refusal tells of the first endpoint.
fn told(message: &str) -> Outcome<f64> {
    assert!(message.contains("remote can't be trusted on remote:0"), "{message}");
    let said = message.split_once("the cosine with a reference is ").ok_or(message.to_owned())?.1;
    Ok(said.split_once(", and").ok_or("no number")?.0.parse()?)
}

/// Of the same dimensions, and with the same vocabulary.
async fn another_model_is_refused_with_the_cosine() -> Outcome {
    let far = Far::start("medium").await?;
    let gateway = far.gateway().await?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    let setup = setup.setting("providers.remote.model", "medium");
    let message = refusal(&setup).await?;
    assert!(told(&message)? < 0.9, "{message}");
    far.daemon.stop().await
}

async fn another_model_in_triton_is_refused_with_the_cosine() -> Outcome {
    let graph = compiled("medium").await?;
    let triton = Server::triton(&graph, "medium", Ports::default()).await?;
    for url in [triton.url(), &triton.grpc_url()] {
        let setup = fleet("low", "oip", &[url])?.setting("providers.remote.model", "medium");
        let message = refusal(&setup).await?;
        assert!(told(&message)? < 0.9, "{message}");
    }
    Ok(())
}

/// What is said of Triton with the right graph, fed as `parameter` says, over HTTP and over gRPC.
async fn refusals(parameter: &str) -> Outcome<[String; 2]> {
    let graph = compiled("low").await?;
    let more = [parameter.to_owned()];
    let triton = Server::triton_with(&graph, ("low", Ports::default()), &more).await?;
    let said = async |url: &str| -> Outcome<String> {
        refusal(&fleet("low", "oip", &[url])?.setting("providers.remote.model", "low")).await
    };
    Ok([said(triton.url()).await?, said(&triton.grpc_url()).await?])
}

/// A text alone has no padding.
async fn who_counts_padding_is_refused_with_the_cosine() -> Outcome {
    for message in refusals("counts_padding=true").await? {
        assert!(told(&message)? < 0.9995, "{message}");
        assert!(message.contains("one of 3 in a batch"), "{message}");
    }
    Ok(())
}

/// A short text is whole.
async fn who_cuts_token_ids_is_refused() -> Outcome {
    for parameter in ["ids_max=120", "ids_max=125"] {
        for message in refusals(parameter).await? {
            assert!(message.contains("it cuts texts before they have 126 tokens"), "{message}");
        }
    }
    Ok(())
}

/// The level `low` has vectors of any length, and llama.cpp makes all of length one.
async fn who_normalises_otherwise_is_refused() -> Outcome {
    let folder = tempfile::Builder::new().prefix("llama-").tempdir()?;
    let llama = Server::llama(folder.path(), "paraphrase-MiniLM-L3-v2").await?;
    let message = refusal(&fleet("low", "openai", &[llama.url()])?).await?;
    assert!(message.contains("times as long as those of the model"), "{message}");
    Ok(())
}
