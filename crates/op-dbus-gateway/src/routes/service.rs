//! Routes about the service and the gateway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use op_dbus_api::option;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zbus::Variant;
use zbus::proxy::MethodFlags;

use crate::Gateway;
use crate::embed::Packed;
use crate::limits;
use crate::prometheus::{self, Told};
use crate::refusal::Refusal;

/// The gateway is alive, whatever the service does.
pub async fn health() -> Json<Value> {
    Json(json!({"status": "alive"}))
}

/// The service embeds, and the gateway is not about to end. A service that is not running is not started
/// for it.
pub async fn ready(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    gateway.leaving.ask();
    if gateway.leaving.begun.is_cancelled() {
        let message = "the gateway is about to end; send requests to another one";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message));
    }
    let embeds = gateway.asked.ready.answer_within(limits::READY_TIME, embeds(&gateway));
    match embeds.await.map_err(Refusal::not_ready) {
        Ok(()) => Ok(Json(json!({"status": "ready"}))),
        Err(refusal) if gateway.trusts(&headers) => Err(refusal),
        Err(refusal) => Err(refusal.without_reason()),
    }
}

/// A trial text is embedded, or others' texts are while it waits: it is behind all that the gateway has sent
/// before, and a balancer that took a busy node for a dead one would give the other nodes its load as well.
async fn embeds(gateway: &Gateway) -> Result<(), Refusal> {
    let before = batches(gateway).await?;
    let of_others = async {
        sleep(limits::TRIAL_TIME).await;
        more_than(gateway, before).await;
    };
    let answer = tokio::select! {
        answer = trial(gateway) => answer,
        () = of_others => Ok(()),
    };
    match answer {
        Err(refusal) if refusal.is_busy() => {
            timeout(limits::BATCH_TIME, more_than(gateway, before)).await.map_err(|_| refusal)
        }
        answer => answer,
    }
}

/// Batches that all models have computed together.
async fn batches(gateway: &Gateway) -> Result<u64, Refusal> {
    let statistics = gateway.bus.lease().await?.read("GetStatistics").await?;
    Ok(statistics["batches"].as_u64().unwrap_or_default())
}

/// Waits until it has computed more than these. One that does not answer has not.
async fn more_than(gateway: &Gateway, before: u64) {
    while !batches(gateway).await.is_ok_and(|now| now > before) {
        sleep(limits::BATCH_PAUSE).await;
    }
}

async fn trial(gateway: &Gateway) -> Result<(), Refusal> {
    let mut lease = gateway.bus.lease().await?;
    let embedder = lease.embedder().await?;
    let time = u32::try_from(limits::READY_TIME.as_millis()).unwrap_or(u32::MAX);
    let options = HashMap::from([(option::DEADLINE_MS, Variant::from(time))]);
    // Another text each time: the vector of one that was embedded before may come from the cache.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = format!("ready? {}", now.as_nanos());
    let body = (vec![text.as_str()], options);
    let (method, flags) = ("EmbedPacked", MethodFlags::NO_AUTO_START);
    let reply: Option<Packed> = lease
        .answer_within(limits::READY_TIME, embedder.inner().call_with_flags(method, flags, &body))
        .await?;
    let vector = reply.map(|(bytes, ..)| bytes.into_vec()).unwrap_or_default();
    if vector.iter().all(|byte| *byte == 0) {
        let message = "the trial text has no vector; see the service's log";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "failed", message));
    }
    Ok(())
}

/// What runs and what it did, as the bus tells it.
pub async fn status(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Refusal> {
    let told = told(&gateway).await?;
    let Told { status, statistics, devices } = &*told;
    Ok(Json(json!({"status": status, "statistics": statistics, "devices": devices})))
}

/// The same and the gateway's own counts, for Prometheus.
pub async fn metrics(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    let text = prometheus::render(&gateway, told(&gateway).await.ok().as_deref());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn told(gateway: &Gateway) -> Result<Arc<Told>, Refusal> {
    let told = gateway.asked.told.answer_within(limits::TOLD_TIME, async {
        let mut lease = gateway.bus.lease().await?;
        Ok(Arc::new(Told {
            status: lease.read("GetStatus").await?,
            statistics: lease.read("GetStatistics").await?,
            devices: lease.devices().await?,
        }))
    });
    told.await
}

/// The routes, for programs.
pub async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("../openapi.json"))
}
