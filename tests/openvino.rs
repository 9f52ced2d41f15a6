//! OpenVINO on the CPU, through ONNX Runtime: an execution provider with a runtime of its own, which is told
//! what to compute in.

use std::collections::HashMap;

use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::golden::{self, cosine};
use crate::harness::process::mapped;
use crate::harness::registry::tests;
use crate::providers::{changes_under_load, provider, refusal, replaced_there};

tests! {
    openvino_serves_in_each_precision: [Bus, Low, OpenVino],
    openvino_computes_in_nothing_but_what_it_says: [Bus, Low, OpenVino, NoGraphics],
    openvino_keeps_what_it_compiled: [Bus, Low, OpenVino],
    openvino_changes_with_others_under_load: [Bus, Low, OpenVino, Ggml] =>
        changes_under_load(["openvino", "ggml", "cpu"]),
    a_worker_lost_on_openvino_is_replaced_there: [Bus, Low, OpenVino] => replaced_there("openvino"),
}

fn strict(setup: Setup) -> Setup {
    setup.setting("execution_provider", "openvino").setting("fallback", "none")
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    std::arch::is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

/// The vectors are the model's, as near as the precision says: and no nearer, where that is coarse.
async fn openvino_serves_in_each_precision() -> Outcome {
    let cases = [("f32", 0.99999, 1.0001), ("f16", 0.9999, 1.0001), ("bf16", 0.9998, 0.99999)];
    for (precision, least, most) in cases {
        let setup = strict(Setup::real("low")?).setting("precision", precision);
        if precision == "bf16" && !has_bf16() {
            let why = refusal(&setup).await?;
            assert!(why.contains("this CPU does not compute in bf16"), "{why}");
            continue;
        }
        let (_bus, _setup, daemon) = setup.alone().await?;
        assert_eq!(provider(&daemon).await?, ("openvino".to_owned(), String::new()));
        let embedder = &daemon.client().embedder;
        assert!(embedder.vector_space().await?.ends_with(&format!("-{precision}")));
        let reply = daemon.client().packed(&golden::plain_texts()?, HashMap::new()).await?;
        assert_eq!(reply.info::<String>("precision")?, precision);
        let cosines = reply.vectors.iter().zip(golden::vectors("low")?);
        let cosines: Vec<f64> = cosines.map(|(found, golden)| cosine(found, &golden)).collect();
        let lowest = cosines.iter().copied().fold(f64::MAX, f64::min);
        assert!(lowest >= least && lowest <= most, "{precision}: {cosines:?}");
        if let Some(mapped) = mapped(daemon.workers().await?[0])? {
            assert!(mapped.contains("libopenvino_intel_cpu_plugin"));
        }
        daemon.stop().await?;
    }
    Ok(())
}

/// What would be computed in another precision, or on another device, than the service then names.
async fn openvino_computes_in_nothing_but_what_it_says() -> Outcome {
    const CONFIG: &str = "providers.openvino.options.load_config";
    let hint = r#"{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}"#;
    let cases = [
        (CONFIG, hint, "INFERENCE_PRECISION_HINT for CPU, which the setting precision decides"),
        ("gpu_device", "1", "device_type CPU has one device, 0, and gpu_device names 1"),
        // None computes without one that is not there.
        ("gpu_device", "0,1", "and gpu_device names 1 (gpu_device comes from: "),
        ("providers.openvino.device_type", "GPU", "not bring it up with device_type GPU"),
        ("providers.openvino.device_type", "NPU", "NPU computes in f16; set precision to that"),
    ];
    for (key, value, part) in cases {
        let why = refusal(&strict(Setup::real("low")?).setting(key, value)).await?;
        assert!(why.contains("openvino does not work here") && why.contains(part), "{why}");
    }
    Ok(())
}

/// It gives a mode to what it writes, which a worker may not.
async fn openvino_keeps_what_it_compiled() -> Outcome {
    let setup = strict(Setup::real("low")?).setting("providers.openvino.cache_dir", "true");
    let (_bus, setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?, ("openvino".to_owned(), String::new()));
    daemon.client().embedder.embed("in what it has compiled").await?;
    daemon.stop().await?;
    let mut folders = vec![setup.path("cache")];
    let mut compiled = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            compiled += usize::from(path.extension().is_some_and(|end| end == "blob"));
            folders.extend(path.is_dir().then_some(path));
        }
    }
    assert!(compiled > 0, "nothing was kept");
    Ok(())
}
