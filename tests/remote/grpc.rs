//! The Open Inference Protocol over gRPC, spoken with Triton.

use std::fs;

use super::{Far, fleet, killed_and_back, refusal, serves, serves_and_tells_no_token};
use crate::harness::Outcome;
use crate::harness::fleet::{Ports, Server, compiled};
use crate::harness::registry::tests;

tests! {
    triton_computes_our_graph_over_grpc: [Bus, Low, Runtime, Triton],
    triton_is_killed_and_comes_back_over_grpc: [Bus, Low, Runtime, Triton] =>
        killed_and_back(Server::grpc_url),
    a_model_that_is_not_there_is_told: [Bus, Low, Runtime, Triton],
    a_token_and_a_certificate_hold_for_grpc_as_well: [Bus, Low, Runtime, Triton, OpenSsl],
    who_speaks_http_alone_is_told: [Bus, Low],
}

async fn triton_computes_our_graph_over_grpc() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton(&graph, "low", Ports::default()).await?;
    let setup = fleet("low", "oip", &[&triton.grpc_url()])?;
    let setup = setup.setting("providers.remote.model", "low");
    let (_bus, _setup, daemon) = setup.alone().await?;
    serves(&daemon, "low").await?;
    // Who makes calls over gRPC is confined as everybody else is.
    let worker = daemon.workers().await?[0];
    let status = fs::read_to_string(format!("/proc/{worker}/status"))?;
    assert!(status.lines().any(|line| line == "Seccomp:\t2"), "{status}");
    daemon.stop().await
}

async fn a_model_that_is_not_there_is_told() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton(&graph, "low", Ports::default()).await?;
    let message = refusal(&fleet("low", "oip", &[&triton.grpc_url()])?).await?;
    assert!(message.contains(&triton.grpc_url()) && message.contains("unknown model"), "{message}");
    Ok(())
}

async fn a_token_and_a_certificate_hold_for_grpc_as_well() -> Outcome {
    let graph = compiled("low").await?;
    let only = ["authorization=Bearer open-sesame".to_owned()];
    let triton = Server::triton_with(&graph, ("low", Ports::default()), &only).await?;
    let tls = Server::tls(graph.path(), &triton.grpc_url()).await?;
    let url = tls.url().replace("https://", "grpcs://");
    let setup = fleet("low", "oip", &[&url])?.setting("providers.remote.model", "low");
    let message = refusal(&setup).await?;
    assert!(message.contains(&url) && message.contains("certificate"), "{message}");
    let certificate = graph.path().join("certificate.pem").display().to_string();
    let setup = setup.setting("providers.remote.ca_file", &certificate);
    let message = refusal(&setup).await?;
    assert!(message.contains("who is that?"), "{message}");
    let token = graph.path().join("token");
    fs::write(&token, "open-sesame\n")?;
    let setup = setup.setting("providers.remote.token_file", &token.display().to_string());
    serves_and_tells_no_token(setup).await
}

async fn who_speaks_http_alone_is_told() -> Outcome {
    let far = Far::start("low").await?;
    let url = far.gateway().await?.url("").replace("http://", "grpc://");
    let message = refusal(&fleet("low", "oip", &[&url])?).await?;
    assert!(message.contains(&format!("{url} can't be used: ")), "{message}");
    far.daemon.stop().await
}
