//! What providers are told in their own options: to compute in something, and to record.

use op_dbus_engine::BackendError;

use crate::{Accelerator, openvino};

/// Options by which a provider records the runs of a session, to replay them.
const RECORDING: [&str; 2] = ["enable_cuda_graph", "enableGraphCapture"];

/// Options by which a provider computes a graph in something coarser, and what that is.
const COARSER: [(&str, &str); 3] =
    [(TENSORRT_F16, "f16"), (TENSORRT_BF16, "bf16"), ("migraphx_fp16_enable", "f16")];

/// Those of TensorRT.
const TENSORRT_F16: &str = "trt_fp16_enable";
const TENSORRT_BF16: &str = "trt_bf16_enable";

/// ggml's for what it keeps weights in, whatever the graph has.
const GGML_WEIGHTS: &str = "weights";

/// Whether an option is set, as ONNX Runtime reads it: the last word counts, and it is one of three.
pub fn is_on(options: &[(String, String)], key: &str) -> bool {
    let said = options.iter().rev().find(|(own, _)| own == key);
    said.is_some_and(|(_, said)| matches!(said.as_str(), "1" | "true" | "True"))
}

impl Accelerator {
    /// The same, told to compute in `precision` where the provider does not take that from the graph.
    ///
    /// # Errors
    /// `ProviderUnavailable`: it does not compute in that.
    pub(crate) fn computing_in(mut self, precision: &'static str) -> Result<Self, BackendError> {
        match (self.provider.as_str(), precision) {
            ("openvino", _) => {
                self.options = openvino::told(&self, precision).map_err(|e| self.unavailable(e))?;
            }
            ("tensorrt", "bf16") if is_on(&self.options, TENSORRT_F16) => {
                let why =
                    format!("precision is bf16, and {TENSORRT_F16} is set; leave one of them out");
                return Err(self.unavailable(why));
            }
            ("tensorrt", "bf16") => self.tell(TENSORRT_BF16, "1"),
            (_, "bf16") => {
                let why = "it computes in f32 and f16; set precision to one of them, or to auto";
                return Err(self.unavailable(why.to_owned()));
            }
            ("ggml", _) => self.tell(GGML_WEIGHTS, precision),
            _ => {}
        }
        Ok(self)
    }

    /// Sets an option, whatever it was.
    fn tell(&mut self, key: &str, value: &str) {
        self.options.retain(|(own, _)| own != key);
        self.options.push((key.to_owned(), value.to_owned()));
    }

    /// What the provider computes a graph of this precision in.
    pub(crate) fn precision(&self, graph: &'static str) -> &'static str {
        let coarser = COARSER.iter().find(|(key, _)| is_on(&self.options, key));
        coarser.map_or(graph, |(_, precision)| precision)
    }

    /// Whether the provider is told to record.
    pub(crate) fn records(&self) -> bool {
        RECORDING.iter().any(|key| is_on(&self.options, key))
    }

    /// The same without what tells it to record.
    pub(crate) fn without_recording(mut self) -> Self {
        self.options.retain(|(key, _)| !RECORDING.contains(&key.as_str()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_for_those_who_have_it() {
        let tensorrt =
            Accelerator::of("tensorrt", &[("trt_bf16_enable", "0")]).computing_in("bf16").unwrap();
        assert_eq!(tensorrt.options, [("trt_bf16_enable".to_owned(), "1".to_owned())]);
        assert_eq!(tensorrt.precision("bf16"), "bf16");
        let refusal = Accelerator::of("cuda", &[]).computing_in("bf16").unwrap_err().to_string();
        assert!(
            refusal.contains("cuda does not work here: it computes in f32 and f16"),
            "{refusal}"
        );
        assert_eq!(Accelerator::of("cuda", &[]).computing_in("f16").unwrap().options, []);
    }

    #[test]
    fn ggml_keeps_weights_in_what_is_computed_in() {
        for precision in ["f32", "f16"] {
            let ggml =
                Accelerator::of("ggml", &[("weights", "q8_0")]).computing_in(precision).unwrap();
            assert_eq!(ggml.options, [("weights".to_owned(), precision.to_owned())]);
        }
    }

    #[test]
    fn a_provider_records_where_its_own_option_says_so() {
        let cuda = Accelerator::of("cuda", &[("use_tf32", "0"), ("enable_cuda_graph", "1")]);
        assert!(cuda.records());
        assert!(Accelerator::of("webgpu", &[("enableGraphCapture", "1")]).records());
        assert!(!Accelerator::of("cuda", &[("enable_cuda_graph", "0")]).records());
        let cuda = cuda.without_recording();
        assert!(!cuda.records());
        assert_eq!(cuda.options, [("use_tf32".to_owned(), "0".to_owned())]);
    }

    #[test]
    fn an_option_is_on_as_onnx_runtime_reads_it() {
        for word in ["1", "true", "True"] {
            assert!(Accelerator::of("cuda", &[("enable_cuda_graph", word)]).records(), "{word}");
            let tensorrt = Accelerator::of("tensorrt", &[(TENSORRT_F16, word)]);
            assert_eq!(tensorrt.precision("f32"), "f16");
            let refusal = tensorrt.computing_in("bf16").unwrap_err().to_string();
            assert!(refusal.contains("trt_fp16_enable is set; leave one"), "{refusal}");
        }
        let twice = [("enable_cuda_graph", "1"), ("enable_cuda_graph", "0")];
        assert!(!Accelerator::of("cuda", &twice).records());
    }
}
