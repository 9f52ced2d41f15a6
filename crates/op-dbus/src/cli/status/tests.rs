//! What people are told of a service.

use super::*;

fn text(all: &Value) -> String {
    Report { all, coloured: false, now: UNIX_EPOCH + Duration::from_secs(70) }.text()
}

#[test]
fn a_busy_service_is_told_in_full() {
    let all = json!({
        "status": {
            "version": "1.2.3", "state": "degraded", "status": "Serving m on cpu:0",
            "level": "medium", "model": "m", "dimensions": 384, "max_input_tokens": 256,
            "provider": "cpu", "precision": "bf16", "requested_provider": "cuda",
            "engine": "native", "isa": "avx512\u{1b}bf16",
            "fallback_reason": "no \u{1b}driver", "vector_space": "ab-bf16",
            "since": 5_000_000, "in_flight_calls": 1, "in_flight_tokens": 2048,
            "queue_tokens": 512, "cache_vectors": 2500, "cache_bytes": 5_242_880,
            "workers": [{
                "device": "cpu:0", "pid": 7, "state": "busy", "batches": 3, "restarts": 1,
                "last_error": "killed", "sandbox": "landlock 7, seccomp", "model": "m",
            }, { "device": "cpu:0", "pid": 8, "state": "idle", "batches": 1, "model": "another" }, {
                "device": "cuda:1\u{1b}", "state": "restarting", "last_error": "no \u{1b}device",
                "model": "m",
            }],
        },
        "statistics": {
            "calls": 2, "texts": 1000, "cached": 1, "tokens": 15_000, "batches": 30, "truncated": 1,
            "padded_over_tokens": 1.05, "failures": { "overloaded": 4, "too-large": 1 },
            "queue_us_p50": 1500, "queue_us_p95": 2000, "queue_us_p99": 3000,
            "compute_us_p50": 4000, "compute_us_p95": 5000, "compute_us_p99": 6000,
            "buffer_reuse_ratio": 0.96, "zero_copy_ratio": 1.0, "graph_replays": 12,
            "arena_bytes": 268_435_456, "arena_hits": 997, "arena_misses": 3,
        },
    });
    let expected = "\
op-dbus 1.2.3: degraded
Serving m on cpu:0

Level     medium (m: 384 dimensions, 256 tokens a text)
Computes  cpu (native, avx512·bf16), bf16; cuda was asked for: no ·driver
Space     ab-bf16
Since     1 min 5 s
Queue     1 call in flight (2,048 tokens, 512 of them waiting)
Done      2 calls, 1,000 texts, 15,000 tokens in 30 batches; padding 5.0 %; 1 text cut
Cache     2,500 vectors in 5.0 MiB; 1 text answered from it
Times     queue 1.5 / 2.0 / 3.0, compute 4.0 / 5.0 / 6.0 ms (p50 / p95 / p99)
Memory    buffers found for 96.0 % of batches; 12 batches replayed; 100.0 % of bytes in place; arena of 256 MiB, 99.7 % of requests served from it
Refused   overloaded 4, too-large 1
Worker    cpu:0, process 7, busy, 3 batches; replaced 1 time, last because killed; confined by landlock 7, seccomp
Worker    cpu:0, process 8, idle, 1 batch; of another
Worker    cuda:1·, restarting, 0 batches; last error: no ·device
";
    assert_eq!(text(&all), expected);
}

#[test]
fn of_devices_in_use_what_is_known_is_told() {
    let mut card = json!({
        "name": "cuda:0", "provider": "cuda", "in_use": true, "description": "NVIDIA H100",
        "memory_total": 85_899_345_920_u64, "memory_used": 13_207_024_435_u64,
        "utilisation_percent": 45.0, "temperature_celsius": 61.0, "power_watts": 310.4,
        "energy_joules": 8_640_000.0,
    });
    assert_eq!(
        device_line(&card).unwrap(),
        "cuda:0 (NVIDIA H100): 12.3 of 80.0 GiB in use, 45 % busy, 61 °C, 310 W, 2.4 kWh"
    );
    card["in_use"] = false.into();
    assert_eq!(device_line(&card), None);
    let only_named = json!({ "name": "webgpu:0", "in_use": true, "memory_total": 7 });
    assert_eq!(device_line(&only_named), None);
    let lost = json!({ "name": "cuda:1", "in_use": true, "problem": "it fell off\u{1b}" });
    assert_eq!(device_line(&lost).unwrap(), "cuda:1: it fell off·");
    let page = text(&json!({ "status": {}, "statistics": {}, "devices": [lost, card] }));
    assert!(page.ends_with("Device    cuda:1: it fell off·\n"), "{page}");
}

#[test]
fn a_service_without_a_model_says_so_in_few_lines() {
    let all = json!({
        "status": { "version": "1", "state": "disabled", "status": "off", "level": "none" },
        "statistics": {},
    });
    let text = text(&all);
    assert!(text.starts_with("op-dbus 1: disabled\noff\n\nLevel     none\n"), "{text}");
    assert!(!text.contains("Computes") && !text.contains("Times"), "{text}");
}

#[test]
fn an_engine_is_told_once_and_without_an_instruction_set_it_does_not_name() {
    let computes = |provider: &str, engine: &str| {
        let status = json!({
            "provider": provider, "engine": engine, "isa": "", "precision": "f32",
        });
        text(&json!({ "status": status, "statistics": {} }))
    };
    assert!(computes("sim", "sim").contains("Computes  sim, f32\n"));
    assert!(computes("cpu", "ort").contains("Computes  cpu (ort), f32\n"));
}
