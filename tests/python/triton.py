"""Triton, which serves a graph of ours by the Open Inference Protocol.

Started by the tests with a folder of its own, the graph, the model's name there, the ports of HTTP and
gRPC, and what `triton_model.py` is to heed beside these, `key=value`. The server is NVIDIA's program, in the
package nvidia-pytriton; ONNX Runtime computes, in that file.
"""

import os
import pathlib
import sys

import onnxruntime

TYPES = {"tensor(int32)": "TYPE_INT32", "tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}


def ports(kind, found):
    sides = [[side if isinstance(side, int) else -1 for side in port.shape] for port in found]
    one = '{} {{ name: "{}" data_type: {} dims: {} }}\n'
    return "".join(one.format(kind, p.name, TYPES[p.type], s) for p, s in zip(found, sides))


def main():
    folder, graph, name, http, grpc = pathlib.Path(sys.argv[1]), *sys.argv[2:6]
    parameters = {"graph": graph, **dict(word.split("=", 1) for word in sys.argv[6:])}
    packages = pathlib.Path(onnxruntime.__file__).parent.parent
    triton = packages / "pytriton/tritonserver"
    python, model = folder / "backends/python", folder / "models" / name
    if not folder.exists():
        python.mkdir(parents=True)
        for file in (triton / "backends/python").iterdir():
            (python / file.name).symlink_to(file)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = "triton_python_backend_stub"
        (python / stub).symlink_to(triton / "python_backend_stubs" / version / stub)
        (model / "1").mkdir(parents=True)
        # Its interpreter heeds no PYTHONPATH.
        found = f"import sys\nsys.path.insert(0, {str(packages)!r})\n"
        found += pathlib.Path(__file__).with_name("triton_model.py").read_text()
        (model / "1/model.py").write_text(found)
        session = onnxruntime.InferenceSession(graph)
        config = f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
        if "tokenizer" in parameters:
            config += 'input { name: "text" data_type: TYPE_STRING dims: [-1] }\n'
        else:
            config += ports("input", session.get_inputs())
        config += ports("output", session.get_outputs())
        for key, value in parameters.items():
            config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        (model / "config.pbtxt").write_text(config)
    server = triton / "bin/tritonserver"
    words = [
        str(server),
        f"--model-repository={folder}/models",
        f"--backend-directory={folder}/backends",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--grpc-header-forward-pattern=authorization",
        # By which who ends it finds what it leaves in /dev/shm.
        f"--backend-config=python,shm-region-prefix-name=op-dbus-test-{http}-",
        "--allow-metrics=false",
    ]
    libraries = str(packages / "nvidia_pytriton.libs")
    os.execve(server, words, {**os.environ, "LD_LIBRARY_PATH": libraries})


if __name__ == "__main__":
    main()
