//! What the doctor says of NVIDIA's cards, and of the devices that each provider gets.

use serde_json::Value;

use super::{check, command, findings, text};
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::command::{finish, path_with};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::remote::fleet;

tests! {
    cards_are_told_by_a_program_that_ends_with_a_warning: [Bus, Low],
    a_fallback_is_looked_at_on_its_own_card: [Bus, Low],
    a_fallback_is_proved_on_its_own_device: [Bus, Low, Ggml],
}

/// The checks of cuda where NVIDIA's own program is this one.
async fn cuda(setup: &Setup, script: &str) -> Outcome<Value> {
    let bus = PrivateBus::start().await?;
    let mut doctor = command(setup, bus.address(), &["cuda", "--quick", "--json"])?;
    doctor.env("PATH", path_with(&setup.path(""), "nvidia-smi", script)?);
    let found: Value = serde_json::from_str(&finish(doctor, "").await?.stdout)?;
    Ok(found["providers"][0]["checks"].clone())
}

async fn cards_are_told_by_a_program_that_ends_with_a_warning() -> Outcome {
    let setup = Setup::real("low")?;
    let warned = "echo '0, A GPU, 9.0'\n\
                  echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0'\n\
                  exit 14";
    let checks = cuda(&setup, warned).await?;
    assert_eq!(check(&checks, "capability", "ok")?["found"], "0, A GPU, 9.0");
    let checks = cuda(&setup, "echo 'Failed to initialize NVML: Unknown Error'\nexit 255").await?;
    let said = |check: &Value| text(&check["found"]).contains("Failed to initialize NVML");
    assert!(checks.as_array().into_iter().flatten().any(said), "{checks:#}");
    Ok(())
}

/// The numbers of a fleet's endpoints are no cards.
async fn a_fallback_is_looked_at_on_its_own_card() -> Outcome {
    let endpoints = ["https://one.invalid", "https://two.invalid", "https://three.invalid"];
    let setup = fleet("low", "openai", &endpoints)?.setting("gpu_device", "0,1,2");
    let setup = setup.setting("fallback", "cuda,cpu");
    let one = "echo '0, A GPU, 9.0'";
    check(&cuda(&setup, one).await?, "capability", "ok")?;
    let asked_for = setup.setting("execution_provider", "cuda");
    let checks = cuda(&asked_for, one).await?;
    let said = |check: &Value| text(&check["found"]).starts_with("gpu_device names 1,2, ");
    assert!(checks.as_array().into_iter().flatten().any(said), "{checks:#}");
    Ok(())
}

async fn a_fallback_is_proved_on_its_own_device() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "cuda");
    let setup = setup.setting("fallback", "ggml").setting("gpu_device", "1");
    let found = findings(&setup, 0, &["ggml"]).await?;
    let proof = check(&found["providers"][0]["checks"], "proof", "ok")?;
    assert!(text(&proof["found"]).contains("ggml:0"), "{proof}");
    Ok(())
}
