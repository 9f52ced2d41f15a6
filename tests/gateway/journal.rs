//! What the gateway's journal says of the service.

use std::fs;

use serde_json::json;

use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, journal};

tests! {
    a_service_that_is_away_is_told_once_and_so_is_its_return: [Bus, Curl],
    a_bus_that_is_away_is_told: [Bus, Curl],
    the_line_of_the_start_tells_whether_a_key_is_asked_for: [Bus],
    a_test_that_fails_tells_what_the_gateway_wrote: [Bus],
}

async fn a_service_that_is_away_is_told_once_and_so_is_its_return() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let gateway = Gateway::start(&bus, &setup).await?;
    let one = json!({"input": "one"});
    for _ in 0..2 {
        for _ in 0..3 {
            assert_eq!(gateway.get("/ready").await?.status, 503);
            assert_eq!(gateway.get("/metrics").await?.status, 200);
        }
        let daemon = setup.ready(&bus).await?;
        for _ in 0..3 {
            assert_eq!(gateway.get("/ready").await?.status, 200);
            gateway.post("/v1/embeddings", &one).await?.ok()?;
        }
        daemon.stop().await?;
    }
    let log = gateway.stop().await?;
    let lost = "requests can't be served: the service org.opdbus.Embedding1 is not on the bus";
    assert_eq!(log.matches(lost).count(), 2, "{log}");
    assert_eq!(log.matches("org.opdbus.Embedding1 answers again").count(), 2, "{log}");
    assert_eq!(log.matches("WARN").count(), 2, "{log}");
    Ok(())
}

async fn a_bus_that_is_away_is_told() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let gateway = Gateway::start(&bus, &setup).await?;
    gateway.post("/embed", &json!({"inputs": "one"})).await?.ok()?;
    drop(daemon);
    drop(bus);
    for _ in 0..3 {
        assert_eq!(gateway.get("/ready").await?.status, 503);
    }
    let log = gateway.stop().await?;
    assert_eq!(log.matches("requests can't be served: ").count(), 1, "{log}");
    Ok(())
}

async fn the_line_of_the_start_tells_whether_a_key_is_asked_for() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::sim()?);
    let log = Gateway::start(&bus, &setup).await?.stop().await?;
    assert!(log.contains("no API key is asked for, and HTTP is answered at "), "{log}");
    fs::write(setup.path("api-key"), "secret")?;
    let log = Gateway::with_key(&bus, &setup, &setup.path("")).await?.stop().await?;
    assert!(log.contains("the API key is asked for, and HTTP is answered at "), "{log}");
    Ok(())
}

/// Its failure drops the gateway in the middle.
async fn a_test_that_fails_tells_what_the_gateway_wrote() -> Outcome {
    let (bus, setup, _daemon) = Setup::sim()?.alone().await?;
    drop(Gateway::start(&bus, &setup).await?);
    let told = journal::take();
    assert!(told.contains("op-dbus gateway wrote:") && told.contains("answered at "), "{told}");
    Ok(())
}
