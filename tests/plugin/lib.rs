//! A provider library that has TensorRT's name and computes as ggml's beside it does: a device of NVIDIA's that
//! any machine has.
//!
//! Signatures are those of `onnxruntime_ep_c_api.h`; of what the pointers are is of no matter here.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

const NAME: &CStr = c"TensorrtExecutionProvider";
const BESIDE: &str = "libonnxruntime_ggml.so";

type Create = unsafe extern "C" fn(
    *const c_char,
    *const c_void,
    *const c_void,
    *mut *mut c_void,
    usize,
    *mut usize,
) -> *mut c_void;
type Release = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// A function of the library beside this one; null if there is none.
fn beside(function: &CStr) -> *mut c_void {
    let mut own = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the address is of this library, and `own` is written alone.
    if unsafe { libc::dladdr(beside as *const c_void, &mut own) } == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the loader has told the path of this library, which stays loaded.
    let path = unsafe { CStr::from_ptr(own.dli_fname) };
    let other = Path::new(OsStr::from_bytes(path.to_bytes())).with_file_name(BESIDE);
    // By a link its own would not be found.
    let Ok(other) = other.canonicalize() else { return ptr::null_mut() };
    let Ok(other) = CString::new(other.as_os_str().as_bytes()) else { return ptr::null_mut() };
    // SAFETY: both are strings that end; what the library does when it is loaded it does for ONNX Runtime as well.
    unsafe {
        match libc::dlopen(other.as_ptr(), libc::RTLD_NOW) {
            // What is sought everywhere would be found here.
            library if library.is_null() => panic!("{:?}", CStr::from_ptr(libc::dlerror())),
            library => libc::dlsym(library, function.as_ptr()),
        }
    }
}

/// # Safety
/// As ONNX Runtime calls it.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "ONNX Runtime looks for this name")]
pub unsafe extern "C" fn CreateEpFactories(
    _: *const c_char,
    api: *const c_void,
    logger: *const c_void,
    factories: *mut *mut c_void,
    most: usize,
    count: *mut usize,
) -> *mut c_void {
    // SAFETY: a function of that name has this signature, and the pointers are the caller's; without it the load
    // fails here, in a worker.
    unsafe {
        let create: Option<Create> = std::mem::transmute(beside(c"CreateEpFactories"));
        create.expect(BESIDE)(NAME.as_ptr(), api, logger, factories, most, count)
    }
}

/// # Safety
/// As ONNX Runtime calls it, with what [`CreateEpFactories`] made.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "ONNX Runtime looks for this name")]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut c_void) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        let release: Option<Release> = std::mem::transmute(beside(c"ReleaseEpFactory"));
        release.expect(BESIDE)(factory)
    }
}
