//! What becomes of a model that could not be loaded, once it is there; and what is told of one whose batches hang.

use op_dbus_engine::{Batch, Description};

use super::guilt::{service, service_with};
use super::*;

/// A service whose model was not there when it started, and is now.
async fn fetched(root: &tempfile::TempDir) -> Service {
    let service = service(root, Backends::default().spawner());
    let [there, away] = ["models/tiny", "away"].map(|name| root.path().join(name));
    std::fs::rename(&there, &away).unwrap();
    service.start().await;
    assert!(matches!(service.now().phase, Phase::Failed(_)));
    std::fs::rename(&away, &there).unwrap();
    service
}

fn serves(service: &Service) -> bool {
    matches!(service.now().phase, Phase::Serving(_))
}

/// Who keeps the properties as signals tell them has the new ones then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_warmed_up_is_in_force_before_that_is_told() {
    let root = tempfile::tempdir().unwrap();
    let service = fetched(&root).await;
    service.warm_up().await.unwrap();
    assert!(serves(&service));
}

/// As one does whose deadline comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_caller_has_left_that_had_it_loaded_comes_into_force() {
    let root = tempfile::tempdir().unwrap();
    let service = fetched(&root).await;
    assert!(embed(&service, None).now_or_never().is_none(), "it is loaded at once");
    let is_told = service.0.tried.notified().now_or_never();
    assert!(is_told.is_some(), "nobody takes up what comes of it");
    service.revive(true).await;
    assert!(serves(&service));
}

/// Nobody who computes is at fault, and a new start of the service would not bring it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_gone_when_it_is_loaded_again_is_told_as_that() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let service = service_with(&[("execution_provider", "cpu")], &root, backends.spawner());
    service.start().await;
    let served = service.serving(None, None).await.unwrap();
    served.engine.unload().await;
    let [there, away] = ["models/tiny", "away"].map(|name| root.path().join(name));
    std::fs::rename(&there, &away).unwrap();
    // As its workers are without it.
    backends.broken.store(true, Ordering::SeqCst);
    embed(&service, None).await.unwrap_err();
    served.engine.failing().await;
    drop(served);
    service.reconsider().await;
    let told = matches!(&service.now().phase, Phase::Failed(it) if it.is_of_missing_model());
    assert!(told, "{}", service.now().summary());
    let error = embed(&service, None).await.unwrap_err();
    assert!(error.is_of_missing_model(), "{error}");
    std::fs::rename(&away, &there).unwrap();
    backends.broken.store(false, Ordering::SeqCst);
    assert_eq!(embed(&service, None).await.unwrap(), 1);
}

/// It would be read, and compared with its digests, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_no_provider_can_be_tried_for_is_not_read_again() {
    let none = [("execution_provider", "coreml"), ("fallback", "none")];
    let (_root, _, service) = started(&none).await;
    assert!(matches!(service.now().phase, Phase::Failed(_)));
    assert!(service.revive(false).now_or_never().is_some(), "it is loaded");
}

/// What a worker process is lost with that hangs in each batch of a caller.
struct Hanging(SimBackend, bool);

impl Backend for Hanging {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        // The first is its proof.
        if std::mem::replace(&mut self.1, true) {
            return Err(BackendError::Lost("it said nothing for 7 s; process 8 ended".to_owned()));
        }
        self.0.run(batch, out)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_batch_hangs_is_told_which_setting_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let spawner: Spawner = Arc::new(|blueprint, _| {
        let dimensions = blueprint.region.dimensions;
        Box::new(move |_| {
            Ok(Box::new(Hanging(SimBackend::new(dimensions), false)) as Box<dyn Backend>)
        })
    });
    let means = Means { spawner, devices: None };
    let service = Service::new(loaded(&root, &[("batch_timeout_s", "7")]), means, None);
    service.start().await;
    let told = embed(&service, None).await.unwrap_err().to_string();
    let limit = "process 8 ended; batch_timeout_s is 7 (flag --batch-timeout-s): raise it";
    assert!(told.contains(limit), "{told}");
}
