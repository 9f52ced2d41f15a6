//! OpenVINO's own words: which device, and what that computes in. It takes the latter from no graph:
//! by itself a CPU computes in 32 bits, and what else it finds in 16.

use serde_json::{Map, Value};

use crate::Accelerator;

/// What it calls the precision, in its own configuration.
const HINT: &str = "INFERENCE_PRECISION_HINT";

/// The option that its own configuration is told in.
const LOAD_CONFIG: &str = "load_config";

/// The option that names the device, which is a CPU where nobody says.
const DEVICE: &str = "device_type";

/// Its kinds of devices.
const KINDS: [&str; 3] = ["CPU", "GPU", "NPU"];

/// What it is told to compute in `precision` on the chosen device.
///
/// # Errors
/// One clause: what can't be had there, and what can.
pub(crate) fn told(
    accelerator: &Accelerator,
    precision: &str,
) -> Result<Vec<(String, String)>, String> {
    let mut options = accelerator.options.clone();
    if accelerator.library.is_none() {
        number(&mut options, accelerator.device)?;
    }
    let said = |wanted| options.iter().find(|(key, _)| key == wanted).map(|(_, said)| said);
    let device = device(&options);
    match precision {
        "bf16" if device != KINDS[0] => {
            return Err(format!("it computes in bf16 on a CPU alone, and device_type is {device}"));
        }
        "bf16" if !has_bf16() => {
            return Err("this CPU does not compute in bf16; set precision to auto".to_owned());
        }
        "f32" if device.contains(KINDS[2]) => {
            return Err(format!("{device} computes in f16; set precision to that"));
        }
        _ => {}
    }
    let config = match said(LOAD_CONFIG) {
        None => Map::new(),
        Some(said) => serde_json::from_str(said)
            .map_err(|error| format!("{LOAD_CONFIG} is no object in JSON ({error})"))?,
    };
    let config = hinted(config, precision)?;
    options.retain(|(key, _)| key != LOAD_CONFIG);
    options.push((LOAD_CONFIG.to_owned(), Value::Object(config).to_string()));
    Ok(options)
}

/// Names the device by its number, which is one among several only where that is a GPU.
fn number(options: &mut [(String, String)], number: usize) -> Result<(), String> {
    if number == 0 {
        return Ok(());
    }
    let device = options.iter_mut().find(|(key, _)| key == DEVICE);
    match device {
        Some((_, device)) if device == KINDS[1] => {
            *device = format!("{device}.{number}");
            Ok(())
        }
        device => {
            let device = device.map_or(KINDS[0], |(_, device)| device.as_str());
            Err(format!("{DEVICE} {device} has one device, 0, and gpu_device names {number}"))
        }
    }
}

/// How many devices there are to choose from by number; 0 for GPUs, which it counts and does not tell of.
pub(crate) fn devices(accelerator: &Accelerator) -> usize {
    // Of GPUs any but the first has its number in its name by now.
    usize::from(accelerator.device == 0 && device(&accelerator.options) != KINDS[1])
}

/// Whether it is told to compute on an NPU and nothing else.
pub(crate) fn is_npu(options: &[(String, String)]) -> bool {
    device(options) == KINDS[2]
}

/// What it is told to compute on.
fn device(options: &[(String, String)]) -> &str {
    let device = options.iter().find(|(key, _)| key == DEVICE);
    device.map_or(KINDS[0], |(_, device)| device.as_str())
}

/// The same configuration with the precision of each kind of device.
fn hinted(mut config: Map<String, Value>, precision: &str) -> Result<Map<String, Value>, String> {
    for (device, told) in &config {
        let mut keys = told.as_object().into_iter().flat_map(Map::keys);
        if keys.any(|key| key.eq_ignore_ascii_case(HINT)) {
            return Err(format!(
                "{LOAD_CONFIG} says {HINT} for {device}, which the setting precision decides; leave \
                 it out"
            ));
        }
    }
    for kind in KINDS {
        // A CPU computes what was rounded to 16 bits in 32.
        let hint = match (kind, precision) {
            ("CPU", "f16") => "f32",
            _ => precision,
        };
        let told = config.entry(kind).or_insert_with(|| Value::Object(Map::new()));
        let told = told.as_object_mut();
        let told = told.ok_or_else(|| format!("{LOAD_CONFIG} has no object for {kind}"))?;
        told.insert(HINT.to_owned(), hint.into());
    }
    Ok(config)
}

/// Whether the CPU multiplies bfloat16; elsewhere OpenVINO computes in 32 bits and does not say so.
fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told_of(device: usize, options: &[(&str, &str)], precision: &str) -> Result<Value, String> {
        let accelerator = Accelerator { device, ..Accelerator::of("openvino", options) };
        let told = told(&accelerator, precision)?.into_iter();
        Ok(Value::Object(told.map(|(key, value)| (key, value.into())).collect()))
    }

    fn config(told: &Value) -> Value {
        serde_json::from_str(told[LOAD_CONFIG].as_str().unwrap()).unwrap()
    }

    #[test]
    fn each_kind_of_device_is_told_its_precision() {
        let f32 = config(&told_of(0, &[], "f32").unwrap());
        assert_eq!(f32["CPU"], json!({ HINT: "f32" }));
        assert_eq!(f32["GPU"], json!({ HINT: "f32" }));
        let f16 = config(&told_of(0, &[("device_type", "GPU")], "f16").unwrap());
        assert_eq!((&f16["CPU"][HINT], &f16["GPU"][HINT]), (&json!("f32"), &json!("f16")));
        let own = [(LOAD_CONFIG, r#"{"CPU": {"NUM_STREAMS": "2"}}"#)];
        let kept = config(&told_of(0, &own, "f32").unwrap());
        assert_eq!(kept["CPU"], json!({ "NUM_STREAMS": "2", HINT: "f32" }));
    }

    #[test]
    fn what_can_not_be_had_is_refused() {
        let refused = |options: &[(&str, &str)], precision, part: &str| {
            let refusal = told_of(0, options, precision).unwrap_err();
            assert!(refusal.contains(part), "{refusal}");
        };
        refused(&[("device_type", "GPU.0")], "bf16", "device_type is GPU.0");
        refused(&[("device_type", "AUTO:NPU,CPU")], "f32", "AUTO:NPU,CPU computes in f16");
        let hint = format!(r#"{{"CPU": {{"{HINT}": "bf16"}}}}"#);
        refused(&[(LOAD_CONFIG, &hint)], "f32", "which the setting precision decides");
        let hint = hint.to_lowercase();
        refused(
            &[(LOAD_CONFIG, &hint.replace("cpu", "CPU"))],
            "f32",
            "which the setting precision",
        );
        refused(&[(LOAD_CONFIG, "/etc/openvino.json")], "f32", "no object in JSON");
        refused(&[(LOAD_CONFIG, r#"{"CPU": 1}"#)], "f32", "no object for CPU");
    }

    #[test]
    fn an_npu_is_told_from_what_may_choose_one() {
        let is = |device: &str| is_npu(&[(DEVICE.to_owned(), device.to_owned())]);
        assert!(is("NPU") && !is_npu(&[]));
        assert!(!["CPU", "GPU", "AUTO:NPU,CPU"].into_iter().any(is));
    }

    #[test]
    fn a_number_is_one_of_several_gpus() {
        let device = |told: Value| told["device_type"].clone();
        assert_eq!(device(told_of(2, &[("device_type", "GPU")], "f32").unwrap()), "GPU.2");
        assert_eq!(device(told_of(0, &[("device_type", "GPU")], "f32").unwrap()), "GPU");
        for options in [&[][..], &[("device_type", "GPU.1")]] {
            let refusal = told_of(1, options, "f32").unwrap_err();
            assert!(refusal.ends_with("has one device, 0, and gpu_device names 1"), "{refusal}");
        }
    }

    #[test]
    fn how_many_devices_there_are_is_known_of_all_but_gpus() {
        let devices = |device: usize, device_type: Option<&str>| {
            let options = device_type.map(|kind| (DEVICE, kind));
            let accelerator = Accelerator::of("openvino", options.as_slice());
            let accelerator = Accelerator { device, ..accelerator };
            devices(&accelerator.computing_in("f16").unwrap())
        };
        for one in [None, Some("CPU"), Some("NPU"), Some("GPU.1"), Some("AUTO:GPU,CPU")] {
            assert_eq!(devices(0, one), 1, "{one:?}");
        }
        assert_eq!([0, 1].map(|device| devices(device, Some("GPU"))), [0, 0]);
    }
}
