//! A library that stands in for NVIDIA's management library, with three GPUs: one that tells
//! everything, one that lacks what older ones lack, and one that is lost.
//!
//! Signatures and numbers are those of `nvml.h`. Of the functions that the service asks for one is
//! left out, as in the library of an older driver.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

/// `nvmlReturn_t`.
type Return = c_int;

const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const GPU_IS_LOST: Return = 15;

/// `nvmlDevice_t`, which callers only pass on: here its number, from 1.
type Device = usize;

const WHOLE: Device = 1;
const OLD: Device = 2;
const LOST: Device = 3;

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// Answers of the devices: the first two numbers of what each tells, or that it is lost.
fn answer<T>(device: Device, whole: T, old: Option<T>, told: &mut T) -> Return {
    let (code, value) = match (device, old) {
        (WHOLE, _) => (SUCCESS, Some(whole)),
        (OLD, Some(old)) => (SUCCESS, Some(old)),
        (OLD, None) => (NOT_SUPPORTED, None),
        (LOST, _) => (GPU_IS_LOST, None),
        _ => (INVALID_ARGUMENT, None),
    };
    if let Some(value) = value {
        *told = value;
    }
    code
}

/// # Safety
/// The name is that of NVIDIA's library, of which a process that loads this one has no other.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    SUCCESS
}

/// # Safety
/// As `nvmlInit_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    SUCCESS
}

/// # Safety
/// As `nvmlInit_v2`; callers pass a place of their own.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: &mut c_uint) -> Return {
    *count = 3;
    SUCCESS
}

/// # Safety
/// As `nvmlDeviceGetName`.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    let told = b"580.1.2\0";
    if told.len() > length as usize {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's room is as long as it says, which was compared with what is copied.
    unsafe { version.cast::<u8>().copy_from_nonoverlapping(told.as_ptr(), told.len()) };
    SUCCESS
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: &mut Device) -> Return {
    *device = index as usize + 1;
    if index < 3 { SUCCESS } else { INVALID_ARGUMENT }
}

/// # Safety
/// As `nvmlInit_v2`; callers pass room for `length` characters, which is more than these.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: Device,
    name: *mut c_char,
    length: c_uint,
) -> Return {
    let mut told: &[u8] = b"";
    let code = answer(device, &b"A whole GPU\0"[..], Some(&b"An old GPU\0"[..]), &mut told);
    if told.len() > length as usize {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's room is as long as it says, which was compared with what is copied.
    unsafe { name.cast::<u8>().copy_from_nonoverlapping(told.as_ptr(), told.len()) };
    code
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: &mut Memory) -> Return {
    // Callers say which layout they mean: its size, and 2 in the highest byte.
    if memory.version != size_of::<Memory>() as c_uint | 2 << 24 {
        return INVALID_ARGUMENT;
    }
    let told = |total: c_ulonglong, used| Memory {
        version: 0,
        total: total << 30,
        reserved: 0,
        free: (total - used) << 30,
        used: used << 30,
    };
    answer(device, told(80, used()), Some(told(16, 1)), memory)
}

/// GiB in use on the first device: what a file `used` beside this library says, or else 12.
fn used() -> c_ulonglong {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own =
        maps.lines().find_map(|line| line.split_once('/')?.1.strip_suffix("libnvidia-ml.so.1"));
    let said = own.and_then(|folder| std::fs::read_to_string(format!("/{folder}used")).ok());
    said.and_then(|said| said.trim().parse().ok()).unwrap_or(12)
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, rates: &mut Utilization) -> Return {
    answer(device, Utilization { gpu: 45, memory: 7 }, None, rates)
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(device: Device, _: c_uint, celsius: &mut c_uint) -> Return {
    answer(device, 61, Some(40), celsius)
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: &mut c_uint) -> Return {
    answer(device, 310_500, None, milliwatts)
}

/// # Safety
/// As `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: Device,
    millijoules: &mut c_ulonglong,
) -> Return {
    answer(device, 1_234_500, None, millijoules)
}
