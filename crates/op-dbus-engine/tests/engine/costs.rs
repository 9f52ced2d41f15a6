//! What batches are known to cost on a device: what was measured or seen there, and nothing where something came
//! between.

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, Description, Engine, LoadErrorKind, Pool,
    Reference,
};

use crate::support::*;

/// What becomes of a batch once it is computed. They are counted from 1, which is the proof at the load.
type Happens = fn(u64, &mut Description, &mut [f32]) -> Result<(), BackendError>;

struct Eventful {
    sim: SimBackend,
    description: Description,
    batches: u64,
    happens: Happens,
}

impl Backend for Eventful {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.batches += 1;
        self.sim.run(batch, out)?;
        (self.happens)(self.batches, &mut self.description, out)
    }
}

fn pool(happens: Happens) -> Pool {
    Pool::new(Box::new(move |_| {
        let sim = SimBackend::of("device", DIMENSIONS);
        let description = sim.description().clone();
        Ok(Box::new(Eventful { sim, description, batches: 0, happens }))
    }))
}

/// Beside a CPU, so that there is a choice, and the device's second batch is the first that is measured.
fn beside_a_cpu(device: Pool) -> Result<Engine, BackendError> {
    let cpu: BackendFactory = Box::new(|_| Ok(Box::new(SimBackend::of("cpu", DIMENSIONS))));
    try_of_pools(vec![device, Pool::new(cpu)])
}

fn failed() -> Result<(), BackendError> {
    Err(BackendError::Failed("on purpose".into()))
}

fn moves(batch: u64, description: &mut Description, _: &mut [f32]) -> Result<(), BackendError> {
    if batch == 2 {
        "device:1".clone_into(&mut description.device);
    }
    Ok(())
}

#[test]
fn a_device_that_fails_what_is_measured_and_goes_on_serves_without_known_costs() {
    let device = pool(|batch, _, _| if batch == 2 { failed() } else { Ok(()) });
    let known = beside_a_cpu(device).unwrap().known_costs();
    assert!(known[0].is_empty() && !known[1].is_empty(), "{known:?}");
}

/// As a driver may in whose context that batch has broken something.
#[test]
fn a_device_that_fails_what_is_measured_and_lies_from_then_on_does_not_serve() {
    let reference = Some(Reference::new(reference().vector, 0.9999));
    let device = pool(|batch, _, vector| {
        match batch {
            1 => {}
            2 => return failed(),
            _ => vector.reverse(),
        }
        Ok(())
    });
    let error = beside_a_cpu(Pool { reference, ..device }).unwrap_err();
    let BackendError::Load { kind, message } = &error else { panic!("{error}") };
    assert_eq!(*kind, LoadErrorKind::Untrusted, "{message}");
}

#[test]
fn what_is_measured_while_another_device_takes_over_is_known_of_neither() {
    let known = beside_a_cpu(pool(moves)).unwrap().known_costs();
    assert!(known[0].is_empty(), "{known:?}");
}

/// A failover takes longer than any batch.
#[tokio::test]
async fn what_a_batch_takes_that_ends_on_another_device_is_learned_of_neither() {
    let engine = of_pools(vec![pool(moves)]);
    engine.embed(call(1, &["a"])).await.unwrap();
    assert!(engine.costs(16).is_empty());
    engine.embed(call(1, &["b"])).await.unwrap();
    let devices: Vec<_> = engine.costs(16).into_iter().map(|(device, _)| device).collect();
    assert_eq!(devices, ["device:1"]);
}
