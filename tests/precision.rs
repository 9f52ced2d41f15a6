//! Half precision and bound buffers: on what has them, as the model's vectors, and told wherever they
//! have no effect.

use std::collections::HashMap;
use std::fs;

use op_dbus_api::ErrorName;

use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::fixture;
use crate::harness::golden::{self, assert_near};
use crate::harness::registry::tests;
use crate::native::with_graph;
use crate::providers::{find, ggml, provider};

tests! {
    a_device_computes_in_halves: [Bus, Low, Ggml],
    halves_are_for_devices: [Bus, Low],
    integers_are_for_the_cpu: [Bus, Low, Ggml],
    a_graph_of_the_users_own_is_computed_as_it_is: [Bus, Runtime],
    bound_buffers_give_the_same_vectors: [Bus, Low, Runtime] =>
        same_bound(|| Ok(Setup::real("low")?.setting("cpu_engine", "ort"))),
    bound_buffers_serve_a_device: [Bus, Low, Ggml] => same_bound(ggml),
    bound_buffers_are_for_onnx_runtime: [Bus, Low],
}

/// The vectors are the model's, and the graph is half as large.
async fn a_device_computes_in_halves() -> Outcome {
    let mut sizes = Vec::new();
    for precision in ["f32", "f16"] {
        let setup = ggml()?.setting("precision", precision);
        let (_bus, setup, daemon) = setup.alone().await?;
        let embedder = &daemon.client().embedder;
        assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
        assert_eq!(embedder.precision().await?, precision);
        assert!(embedder.vector_space().await?.ends_with(&format!("-{precision}")));
        let reply = daemon.client().packed(&golden::plain_texts()?, HashMap::new()).await?;
        assert_eq!(reply.info::<String>("precision")?, precision);
        assert_near(&reply.vectors, golden::vectors("low")?, 0.9999);
        daemon.stop().await?;
        let graph = find(&setup.path("cache"), ".graph").ok_or("no graph is kept")?;
        sizes.push(fs::metadata(graph)?.len());
    }
    let share = sizes[1] as f64 / sizes[0] as f64;
    assert!((0.5..0.52).contains(&share), "{sizes:?}");
    Ok(())
}

/// The CPU's own engine has none, and whoever asked for them is told.
async fn halves_are_for_devices() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.setting("precision", "f16").alone().await?;
    let computed = daemon.client().embedder.precision().await?;
    assert!(["f32", "bf16"].contains(&&*computed), "{computed}");
    let said = daemon.process.stderr();
    assert!(said.contains("precision is f16") && said.contains("has no effect"), "{said}");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// No device has them, whatever computes on the CPU, and the sentence says which was asked.
async fn integers_are_for_the_cpu() -> Outcome {
    let setup = ggml()?.setting("precision", "int8");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    assert!(
        message.starts_with("ggml does not work here: it does not compute in int8"),
        "{message}"
    );
    assert!(!message.contains("cpu_engine"), "{message}");
    Ok(())
}

async fn a_graph_of_the_users_own_is_computed_as_it_is() -> Outcome {
    let setup = with_graph(&fs::read(fixture("golden/tiny-bert/onnx/model.onnx"))?).await?;
    let setup = setup.setting("cpu_engine", "ort").setting("precision", "f16");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    assert!(message.contains("computed as it is; set precision to auto"), "{message}");
    Ok(())
}

/// Batches of more shapes than there are buffers for, each twice, against those of a service without.
async fn same_bound(setup: impl Fn() -> Outcome<Setup>) -> Outcome {
    let texts = |n: usize| -> Vec<String> {
        (0..1 + n % 5).map(|row| "word ".repeat(1 + (n * 7 + row) % 90)).collect()
    };
    let mut found = Vec::new();
    for binding in ["off", "on"] {
        let setup = setup()?.setting("io_binding", binding);
        let setup = setup.setting("workers_per_device", "1");
        let (_bus, _setup, daemon) = setup.alone().await?;
        let mut vectors = Vec::new();
        for n in (0..80).chain(0..80) {
            vectors.push(daemon.client().vectors(&texts(n)).await?);
        }
        daemon.client().manager.trim_memory().await?;
        vectors.push(daemon.client().vectors(&golden::plain_texts()?).await?);
        daemon.stop().await?;
        found.push(vectors);
    }
    for (one, other) in found[0].iter().flatten().zip(found[1].iter().flatten()) {
        let distance = golden::distance(one, other);
        assert!(distance <= 1e-5, "{distance}");
    }
    Ok(())
}

async fn bound_buffers_are_for_onnx_runtime() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.setting("io_binding", "on").alone().await?;
    let said = daemon.process.stderr();
    assert!(said.contains("io_binding is on") && said.contains("has no effect"), "{said}");
    daemon.stop().await
}
