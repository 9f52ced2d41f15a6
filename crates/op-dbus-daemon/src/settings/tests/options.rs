//! What the tables of single providers accept, and what ONNX Runtime is told of them.

use figment::value::Value;
use proptest::prelude::*;

use super::{MAIN, Tree};
use crate::settings::kind::plain;
use crate::settings::options::{Form, Told, all, of, told, without_effect};
use crate::settings::{Kind, Provider};

/// What ONNX Runtime is told of a provider under a file; a folder is `<folder>`.
fn told_of(provider: &str, file: &str) -> Vec<(String, String)> {
    let settings = Tree::new(&[(MAIN, file)]).loaded().settings;
    let value = |told| match told {
        Told::Value(value) => value,
        Told::Folder => "<folder>".to_owned(),
    };
    told(provider, &settings).into_iter().map(|(key, told)| (key, value(told))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

#[test]
fn the_table_is_consistent() {
    for (index, option) in all().enumerate() {
        let key = (option.provider, option.key);
        assert!(all().take(index).all(|other| (other.provider, other.key) != key), "{key:?}");
        assert!(Provider::ALL.iter().any(|(_, name)| *name == option.provider), "{key:?}");
        assert!(option.doc.ends_with('.') && !option.doc.contains("  "), "{}", option.doc);
        assert!(!option.doc.contains('|') && !option.kind.accepted().contains('|'), "{key:?}");
        let accepted = |value| option.kind.parse(&Value::from(value));
        assert!(option.default.is_empty() || accepted(option.default).is_ok(), "{key:?}");
        let is_switch = matches!(option.kind, Kind::Bool);
        assert!(is_switch || option.form == Form::Plain, "{key:?}");
    }
}

#[test]
fn a_provider_is_told_what_is_set_in_its_own_form() {
    assert_eq!(told_of("cuda", ""), []);
    let file = "[providers.cuda]\nuse_tf32 = false\ncudnn_conv_algo_search = \"HEURISTIC\"\n\
                options = { sdpa_kernel = \"2\" }\n";
    let expected =
        [("cudnn_conv_algo_search", "HEURISTIC"), ("use_tf32", "0"), ("sdpa_kernel", "2")];
    assert_eq!(told_of("cuda", file), pairs(&expected));
    let file = "[providers.openvino]\ndevice_type = \"GPU.1\"\n";
    assert_eq!(told_of("openvino", file), pairs(&[("device_type", "GPU.1")]));
    let file = "[providers.webgpu]\npowerPreference = \"low-power\"\n";
    assert_eq!(told_of("webgpu", file), pairs(&[("powerPreference", "low-power")]));
    // Others have none of these.
    assert_eq!(told_of("ggml", file), []);
}

#[test]
fn what_is_compiled_is_kept_unless_that_is_off() {
    let kept = [
        ("trt_engine_cache_enable", "1"),
        ("trt_engine_cache_path", "<folder>"),
        ("trt_timing_cache_enable", "1"),
        ("trt_timing_cache_path", "<folder>"),
    ];
    assert_eq!(told_of("tensorrt", ""), pairs(&kept));
    let off = "[providers.tensorrt]\ntrt_engine_cache_enable = false\n";
    let expected = [kept[0].0, kept[2].0, kept[3].0];
    let found = told_of("tensorrt", off);
    assert_eq!(found.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), expected);
    assert_eq!(found[0].1, "0");
    assert_eq!(
        told_of("openvino", "[providers.openvino]\ncache_dir = true\n"),
        pairs(&[("cache_dir", "<folder>")])
    );
    assert_eq!(told_of("openvino", "[providers.openvino]\ncache_dir = false\n"), []);
}

#[test]
fn settings_for_all_providers_reach_those_that_have_them() {
    let file = "gpu_memory_limit = \"1GiB\"\narena_strategy = \"same-as-requested\"\n";
    let expected = [("gpu_mem_limit", "1073741824"), ("arena_extend_strategy", "kSameAsRequested")];
    assert_eq!(told_of("cuda", file), pairs(&expected));
    // Its own words go before.
    let own = format!("{file}[providers.cuda.options]\ngpu_mem_limit = \"2\"\n");
    let expected = [("arena_extend_strategy", "kSameAsRequested"), ("gpu_mem_limit", "2")];
    assert_eq!(told_of("cuda", &own), pairs(&expected));
    let file = file.replace("same-as-requested", "next-power-of-two");
    let expected = [
        ("migraphx_mem_limit", "1073741824"),
        ("migraphx_arena_extend_strategy", "kNextPowerOfTwo"),
    ];
    assert_eq!(told_of("migraphx", &file), pairs(&expected));
    assert_eq!(told_of("webgpu", &file), []);
    let settings = Tree::new(&[(MAIN, &file)]).loaded().settings;
    assert_eq!(without_effect("cuda", &settings), [""; 0]);
    assert_eq!(without_effect("tensorrt", &settings), ["gpu_memory_limit", "arena_strategy"]);
    let settings = Tree::new(&[]).loaded().settings;
    assert_eq!(without_effect("tensorrt", &settings), [""; 0]);
}

#[test]
fn every_mistake_in_a_table_is_told_with_what_is_right() {
    let tree = Tree::new(&[(
        MAIN,
        "[providers.cuda]\nuse_tf23 = 1\ncudnn_conv_algo_search = \"heuristic\"\nuse_tf32 = \"no\"\n\
         device_id = 1\noptions = { use_tf32 = \"1\", user_compute_stream = \"7\" }\n\
         [providers.tensorrt]\ntrt_sparsity_enable = true\ntrt_engine_cache_path = \"/x\"\n\
         trt_profile_min_shapes = \"input_ids\"\n[providers.openvino]\ndevice_type = \"gpu\"\n\
         disable_dynamic_shapes = true\n",
    )]);
    let text = tree.mistakes();
    for expected in [
        "/etc/op-dbus/config.toml, line 2: `providers.cuda.use_tf23` is not a setting; did you mean `use_tf32`?",
        "providers.cuda.cudnn_conv_algo_search = \"heuristic\" is not accepted (did you mean `HEURISTIC`?); \
         write `EXHAUSTIVE`, `HEURISTIC`, `DEFAULT`",
        "providers.cuda.use_tf32 = \"no\" is not accepted; write `true`, `false`",
        "`providers.cuda.device_id` is not a setting, since the setting `gpu_device` names the devices",
        "`providers.cuda.options.use_tf32` is a checked setting; write `providers.cuda.use_tf32`",
        "line 6: `providers.cuda.options.user_compute_stream` is not a setting, since it is the address",
        "`providers.tensorrt.trt_sparsity_enable` is not a setting; what it lacks a setting for is told to the \
         provider in its own words by `providers.tensorrt.options`",
        "`providers.tensorrt.trt_engine_cache_path` is not a setting, since what is compiled is kept",
        "providers.tensorrt.trt_profile_min_shapes = \"input_ids\" is not accepted; write inputs with",
        "providers.openvino.device_type = \"gpu\" is not accepted; write `CPU`, `GPU`",
        "`providers.openvino.disable_dynamic_shapes` is not a setting, since what it makes is for one shape",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// The worker that is told it would be refused, and the next provider taken.
#[test]
fn openvinos_own_configuration_is_an_object_in_json() {
    let of = |said: &str| {
        let table = format!("[providers.openvino.options]\nload_config = '{said}'\n");
        Tree::new(&[(MAIN, &table)])
    };
    for said in ["/etc/openvino.json", "[]", r#"{"CPU": }"#] {
        let text = of(said).mistakes();
        let expected =
            "/etc/op-dbus/config.toml, line 2: providers.openvino.options.load_config = ";
        assert!(text.contains(expected) && text.contains("no object in JSON"), "{text}");
    }
    of(r#"{"CPU": {"NUM_STREAMS": "2"}}"#).loaded();
    // Others may call anything so.
    let other = "[providers.ggml.options]\nload_config = \"/etc/ggml\"\n";
    Tree::new(&[(MAIN, other)]).loaded();
}

#[test]
fn shapes_that_contradict_each_other_are_refused_with_their_file() {
    let tree =
        Tree::new(&[(MAIN, "[providers.tensorrt]\ntrt_profile_max_shapes = \"lengths:8\"\n")]);
    let text = tree.mistakes();
    let expected = "/etc/op-dbus/config.toml, line 1: providers.tensorrt: trt_profile_max_shapes is set \
                    without trt_profile_min_shapes and trt_profile_opt_shapes; TensorRT needs all three";
    assert!(text.contains(expected), "{text}");
    let right = "[providers.tensorrt]\ntrt_profile_min_shapes = \"input_ids:1x1,lengths:1\"\n\
                 trt_profile_opt_shapes = \"input_ids:32x32,lengths:32\"\n\
                 trt_profile_max_shapes = \"input_ids:256x512,lengths:256\"\n";
    assert_eq!(told_of("tensorrt", right).len(), 7);
}

#[test]
fn a_fleet_that_anybody_could_read_or_that_has_no_time_is_refused() {
    let wrong = |more: &str| {
        let table = format!("[providers.remote]\nendpoints = [\"http://10.0.0.1:8000\"]\n{more}");
        Tree::new(&[(MAIN, &table)]).mistakes()
    };
    let text = wrong("");
    let open = "line 1: providers.remote: endpoints has http for 10.0.0.1, which is neither localhost nor a \
                loopback address";
    assert!(text.contains(open), "{text}");
    assert!(wrong("library = \"/x.so\"\n").contains("`providers.remote.library` is not a setting"));
    for more in ["request_timeout_s = 31\n", "batch_timeout_s = 9\n"] {
        let text = wrong(more);
        assert!(
            text.contains("request_timeout_s is") && text.contains("batch_timeout_s"),
            "{text}"
        );
    }
    let killed = |seconds: u64| {
        let table = "[providers.remote]\nendpoints = \"http://[::1]:1\"\n";
        Tree::new(&[(MAIN, &format!("batch_timeout_s = {seconds}\n{table}"))])
    };
    let text = killed(19).mistakes();
    assert!(text.contains("line 2: providers.remote: batch_timeout_s is 20"), "{text}");
    assert!(text.contains("is 19 (") && text.contains("line 1); set the first no"), "{text}");
    killed(20).loaded();
    let grpc = |more: &str| {
        let table = format!("[providers.remote]\nendpoints = \"grpc://10.0.0.1:8001\"\n{more}");
        Tree::new(&[(MAIN, &table)]).mistakes()
    };
    let text = grpc("");
    assert!(
        text.contains("endpoints has grpc for 10.0.0.1") && text.contains("write grpcs"),
        "{text}"
    );
    let text = grpc("protocol = \"openai\"\nallow_http = true\n");
    assert!(text.contains("protocol is openai") && text.contains("set protocol to oip"), "{text}");
    let right =
        "[providers.remote]\nendpoints = \"http://10.0.0.1:8000,https://b\"\nallow_http = true\n";
    let told = told_of("remote", right);
    assert!(
        told.contains(&pairs(&[("endpoints", "http://10.0.0.1:8000,https://b")])[0]),
        "{told:?}"
    );
}

/// It is refused there, and the refusal is in the journal for long.
#[test]
fn a_password_in_an_address_is_not_quoted() {
    for line in [
        "providers.remote.endpoints = [\"http://10.0.0.1:1\", \"https://bob:sesame@b:8000\"]\n",
        "providers.remote.endpoints = \"https://b/v1?key=sesame\"\n",
        "http_listen = \"bob:sesame@b:8000\"\n",
        "bus = \"tcp://bob:sesame@b:8000\"\n",
        "log = \"https://bob:sesame@b:1\"\n",
        "gpu_device = \"https://bob:sesame,open@b\"\n",
        "gpu_device = [\"0\", \"https://bob:sesame@b\"]\n",
    ] {
        let text = Tree::new(&[(MAIN, line)]).mistakes();
        assert!(text.contains("may hold a secret") && !text.contains("sesame"), "{text}");
    }
}

#[test]
fn what_is_set_is_shown_with_where() {
    let drop_in = "etc/op-dbus/conf.d/10.toml";
    let tree = Tree::new(&[
        (MAIN, "[providers.cuda]\nuse_tf32 = true\nenable_cuda_graph = 1\n"),
        (drop_in, "[providers.cuda]\nuse_tf32 = false\n"),
    ]);
    let shown = tree.loaded().show();
    let value = |key: &str| {
        let shown = shown.iter().find(|shown| shown.key == key).unwrap();
        let origin = shown.origin.replace(&tree.path().display().to_string(), "");
        format!("{} {origin}", shown.value)
    };
    let expected = format!("false /{drop_in}, line 2");
    assert_eq!(value("providers.cuda.use_tf32"), expected);
    assert_eq!(value("providers.cuda.enable_cuda_graph"), format!("true /{MAIN}, line 3"));
}

proptest! {
    /// No value of any type makes the check of an option panic, and what it accepts stays as it is.
    #[test]
    fn what_an_option_accepts_stays_the_same(
        index in 0..all().count(),
        text in ".{0,40}|[a-zA-Z_:,.x0-9]{1,30}|-?[0-9]{1,12}",
    ) {
        let option = all().nth(index).unwrap();
        if let Ok(value) = option.kind.parse(&Value::from(text)) {
            let canonical = plain(&value);
            let again = option.kind.parse(&Value::from(canonical.as_str())).map(|value| plain(&value));
            prop_assert_eq!(again, Ok(canonical));
            prop_assert!(of(option.provider).any(|other| other.key == option.key));
        }
    }
}
