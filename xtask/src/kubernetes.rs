//! `cargo xtask kubernetes`: whether the manifests are what Kubernetes takes, by its own schemas.

use std::path::{Path, PathBuf};

use crate::packages;
use crate::shell::{self, Outcome, program};

/// Checks against the schemas that it brings.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
/// The oldest version that is meant: containers that start before the others and stay.
const OLDEST: &str = "1.29";

/// Fetches the validator and checks every manifest.
pub fn run() -> Outcome {
    packages::ensure(&[packages::PIP])?;
    check(&validator()?)
}

/// Checks every manifest, for the oldest version that is meant and the newest that is known.
pub fn check(validator: &Path) -> Outcome {
    for version in [&["-k", OLDEST][..], &[]] {
        let mut check = program("python3", &["-m", "kubernetes_validate", "--strict", "--quiet"]);
        check.args(version).env("PYTHONPATH", validator);
        shell::run(check.args(manifests()?))?;
    }
    Ok(())
}

fn manifests() -> Result<Vec<PathBuf>, String> {
    let folder = shell::root().join("packaging/kubernetes");
    let entries = folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut manifests: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")).collect();
    manifests.sort();
    if manifests.is_empty() { Err("there are no manifests".to_owned()) } else { Ok(manifests) }
}

/// The folder with the validator, fetched once.
pub fn validator() -> Result<PathBuf, String> {
    packages::python("kubernetes", &[], &[VALIDATOR])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> String {
        std::fs::read_to_string(shell::root().join(path)).expect("a file of the tree")
    }

    /// The key goes to each pod that is kept: those of the Service, and no other namespace's.
    #[test]
    fn prometheus_shows_the_key_to_our_pods_alone() {
        let (document, service) =
            (read("docs/scaling.md"), read("packaging/kubernetes/service.yaml"));
        let recipe = document.split("```").find(|block| block.contains("scrape_configs:"));
        let recipe = recipe.expect("a recipe for Prometheus");
        assert!(recipe.contains("role: pod, namespaces: {names: [NAMESPACE]}"), "{recipe}");
        let selector = service.split("selector:\n").nth(1).expect("a selector");
        let labels = selector.lines().take_while(|line| line.starts_with("    "));
        let labels: Vec<_> = labels.filter_map(|line| line.trim().split_once(": ")).collect();
        assert_eq!(labels.len(), 2, "{labels:?}");
        for (label, value) in labels {
            let label = label.replace(['.', '/', '-'], "_");
            let kept =
                format!("[__meta_kubernetes_pod_label_{label}], regex: {value}, action: keep}}\n");
            assert!(recipe.contains(&kept), "{kept}");
        }
    }

    /// Kubernetes tells each pod of the Services by variables, of `op-dbus` by `OP_DBUS_SERVICE_HOST`, `OP_DBUS_PORT` and
    /// others, and the program refuses what is no setting.
    #[test]
    fn no_pod_has_variables_that_tell_of_the_service() {
        let mut pods = 0;
        for path in manifests().expect("the manifests") {
            let manifest = std::fs::read_to_string(&path).expect("a manifest");
            let count = |line: &str| manifest.lines().filter(|one| one.trim() == line).count();
            let of_this = count("containers:");
            for line in ["automountServiceAccountToken: false", "enableServiceLinks: false"] {
                assert_eq!(count(line), of_this, "{}: {line}", path.display());
            }
            pods += of_this;
        }
        assert!(pods > 0);
    }

    #[test]
    fn a_gpu_adds_to_the_deployment_and_changes_nothing() {
        let read = |name: &str| read(&format!("packaging/kubernetes/{name}"));
        let (plain, gpu) = (read("deployment.yaml"), read("deployment-gpu.yaml"));
        assert!(gpu.contains("nvidia.com/gpu: 1"));
        let mut lines = gpu.lines();
        for line in plain.lines() {
            assert!(lines.any(|found| found == line), "deployment-gpu.yaml lacks {line:?}");
        }
        // What is asked for says which nodes will do; labels are another's matter, and not on every cluster.
        assert!(!gpu.contains("nodeSelector:"));
    }

    /// By itself a budget that is used up keeps pods that do not answer, and with them the node.
    #[test]
    fn a_pod_that_is_not_ready_holds_up_no_drain() {
        let manifest = read("packaging/kubernetes/autoscaler.yaml");
        let budget = manifest.split("kind: PodDisruptionBudget\n").nth(1).expect("a budget");
        assert!(budget.contains("\n  unhealthyPodEvictionPolicy: AlwaysAllow\n"), "{budget}");
    }
}
