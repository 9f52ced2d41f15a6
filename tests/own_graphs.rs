//! What a graph of the user's own may ask for, and what becomes of one whose answer is of no use.

use std::fs;

use op_dbus_api::ErrorName::{ModelCorrupt, WorkerFailed};

use crate::harness::client::refused;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture};
use crate::native::with_graph;

tests! {
    a_graph_that_cannot_be_fed_is_not_imported: [],
    a_graph_whose_data_lie_elsewhere_is_not_imported: [],
    which_output_of_an_own_graph_it_is_can_be_said: [],
    an_output_that_turns_out_to_be_a_guess_is_not_taken: [Bus, Runtime],
    a_graph_that_the_library_refuses_ends_nothing: [Bus, Runtime],
    a_graph_without_end_is_ended: [Bus, Runtime],
    a_text_without_a_finite_vector_costs_no_worker: [Bus, Runtime],
}

/// Rows of the table that the graph looks ids up in: as many as the tokenizer has ids.
const VOCABULARY: u8 = 103;
const WIDTH: u8 = 4;
/// The id of `8`, which is in no text that the service tries a worker with.
const WITHOUT_LOGARITHM: usize = 39;
const FLOAT: u8 = 1;
const INT64: u8 = 7;
const BOOL: u8 = 9;
/// The type of an attribute.
const GRAPH: u8 = 5;

/// A field of protobuf that holds bytes.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let (mut header, mut length) = (vec![number << 3 | 2], content.len());
    while length > 127 {
        header.push(length as u8 | 128);
        length >>= 7;
    }
    header.push(length as u8);
    [header, content.to_vec()].concat()
}

/// A field of protobuf that holds a number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// An input or output with these sides, 0 where they vary.
fn port(name: &str, element_type: u8, sides: &[u8]) -> Vec<u8> {
    let side = |side: &u8| match side {
        0 => field(1, field(2, "any")),
        side => field(1, number(1, *side)),
    };
    let shape: Vec<u8> = sides.iter().flat_map(side).collect();
    let tensor = [number(1, element_type), field(2, shape)].concat();
    [field(1, name), field(2, field(1, tensor))].concat()
}

fn node(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|input| field(1, input));
    inputs.chain(field(2, output)).chain(field(4, operator)).collect()
}

/// The logarithms of a row of a table for each token; in the table is one zero. `more` of the table's own tensor.
fn graph(inputs: &[Vec<u8>], more: &[u8]) -> Vec<u8> {
    graph_with(&node("Log", &["rows"], "last_hidden_state"), inputs, more)
}

/// The same with another `last` node in place of the logarithms.
fn graph_with(last: &[u8], inputs: &[Vec<u8>], more: &[u8]) -> Vec<u8> {
    let (rows, width) = (usize::from(VOCABULARY), usize::from(WIDTH));
    let mut table: Vec<f32> = (0..rows * width).map(|at| (at * 7 % 13 + 1) as f32).collect();
    table[WITHOUT_LOGARITHM * width] = 0.0;
    let table: Vec<u8> = table.into_iter().flat_map(f32::to_le_bytes).collect();
    let tensor = [
        [number(1, VOCABULARY), number(1, WIDTH), number(2, FLOAT)].concat(),
        [field(8, "table"), field(9, table), more.to_vec()].concat(),
    ];
    let graph = [
        field(1, node("Gather", &["table", "input_ids"], "rows")),
        field(1, last),
        field(2, "logarithms"),
        field(5, tensor.concat()),
        inputs.iter().flat_map(|input| field(11, input)).collect(),
        field(12, port("last_hidden_state", FLOAT, &[0, 0, WIDTH])),
    ];
    [number(1, 8), field(7, graph.concat()), field(8, number(2, 17))].concat()
}

/// A name for the vectors of tokens that tells nothing.
const OTHER: &str = "the_other_outputs";

/// The same graph with that name for them.
fn renamed(mut graph: Vec<u8>) -> Vec<u8> {
    let known = "last_hidden_state";
    for at in 0..graph.len() - known.len() {
        if graph[at..].starts_with(known.as_bytes()) {
            graph[at..at + known.len()].copy_from_slice(OTHER.as_bytes());
        }
    }
    graph
}

/// The rows, handed on again and again in place of the logarithms.
fn endless() -> Vec<u8> {
    let body = [
        field(1, node("Identity", &["goes_on"], "goes_on_then")),
        field(1, node("Identity", &["before"], "after")),
        field(2, "body"),
        field(11, port("turn", INT64, &[])),
        field(11, port("goes_on", BOOL, &[])),
        field(11, port("before", FLOAT, &[0, 0, WIDTH])),
        field(12, port("goes_on_then", BOOL, &[])),
        field(12, port("after", FLOAT, &[0, 0, WIDTH])),
    ];
    // The field 20, whose number does not fit in a byte of its header.
    let kind = vec![20 << 3 & 127 | 128, 1, GRAPH];
    let attribute = [field(1, "body"), field(6, body.concat()), kind].concat();
    let last = node("Loop", &["turns", "", "rows"], "last_hidden_state");
    let last = [last, field(5, attribute)].concat();
    let turns = [number(2, INT64), field(8, "turns"), field(9, i64::MAX.to_le_bytes())].concat();
    // A message that comes again adds to the one before.
    [graph_with(&last, &[ids(), mask()], &[]), field(7, field(5, turns))].concat()
}

fn ids() -> Vec<u8> {
    port("input_ids", INT64, &[0, 0])
}

fn mask() -> Vec<u8> {
    port("attention_mask", INT64, &[0, 0])
}

async fn a_graph_that_cannot_be_fed_is_not_imported() -> Outcome {
    let fixed = |sides| port("input_ids", INT64, sides);
    let cases: [(&[Vec<u8>], &str); 7] = [
        (&[ids()], "the graph has no input attention_mask; batches are padded"),
        (&[mask()], "the graph has no input input_ids"),
        (
            &[ids(), mask(), port("position_ids", INT64, &[0, 0])],
            "wants an input position_ids, which is not supported",
        ),
        (
            &[ids(), port("attention_mask", FLOAT, &[0, 0])],
            "the input attention_mask is float32; only int32 and int64 are supported",
        ),
        (&[fixed(&[1, 100]), mask()], "input_ids has the shape [1, 100]"),
        (&[fixed(&[1, 0]), mask()], "input_ids has the shape [1, -1]"),
        (&[fixed(&[0]), mask()], "input_ids has the shape [-1]"),
    ];
    for (inputs, why) in cases {
        let refusal = with_graph(&graph(inputs, &[])).await.err().ok_or(why)?.to_string();
        assert!(refusal.contains(why), "{why}: {refusal}");
    }
    with_graph(&graph(&[ids(), mask()], &[])).await.map(drop)
}

/// ONNX Runtime would read such a file, or an address in its own memory, by itself.
async fn a_graph_whose_data_lie_elsewhere_is_not_imported() -> Outcome {
    for location in ["weights.bin", "*/_ORT_MEM_ADDR_/*"] {
        let place = [field(1, "location"), field(2, location)].concat();
        let graph = graph(&[ids(), mask()], &[field(13, place), number(14, 1)].concat());
        let refusal = with_graph(&graph).await.err().ok_or(location)?.to_string();
        assert!(refusal.contains("tensor table keeps its data in another file"), "{refusal}");
    }
    // In the graphs that it was trained with, too.
    let place = [field(1, "location"), field(2, "/etc/passwd")].concat();
    let tensor = [number(2, FLOAT), field(8, "table"), field(13, place), number(14, 1)].concat();
    for which in [1, 2] {
        // The field 20, whose number does not fit in a byte of its header.
        let training = field(which, field(5, &tensor));
        let training = [vec![20 << 3 & 127 | 2 | 128, 1, training.len() as u8], training].concat();
        let refusal = with_graph(&[graph(&[ids(), mask()], &[]), training].concat()).await;
        let refusal = refusal.err().ok_or("training")?.to_string();
        assert!(refusal.contains("tensor table keeps its data in another file"), "{refusal}");
    }
    Ok(())
}

async fn a_graph_that_the_library_refuses_ends_nothing() -> Outcome {
    let inputs = [ids(), mask()];
    let unknown = node("Backdoor", &["rows"], "last_hidden_state");
    // Of a set of operators that a library brings, whose path the graph tells.
    let elsewhere = [unknown.clone(), field(7, "/tmp/backdoor.so")].concat();
    // One more side of the table, of 2^40.
    let giant = graph(&inputs, &[8, 128, 128, 128, 128, 128, 32]);
    let cases = [
        (graph_with(&unknown, &inputs, &[]), ModelCorrupt, "No Op registered for Backdoor"),
        (graph_with(&elsewhere, &inputs, &[]), ModelCorrupt, "No opset import for domain '/tmp/"),
        (giant, WorkerFailed, "'table' declares a size of 1811995162574848 bytes"),
    ];
    for (graph, name, why) in cases {
        let setup = with_graph(&graph).await?.env("OP_DBUS_CPU_ENGINE", "ort");
        let refusal = setup.refusal(name).await?;
        assert!(refusal.contains("own/model.onnx") && refusal.contains(why), "{why}: {refusal}");
    }
    Ok(())
}

async fn a_graph_without_end_is_ended() -> Outcome {
    let setup = with_graph(&endless()).await?.setting("cpu_engine", "ort");
    setup.import(fixture("golden/tiny-bert"), &["--name", "other"]).await?.success()?;
    let setup = setup.setting("batch_timeout_s", "1");
    let (_bus, setup, daemon) = setup.alone_as("failed").await?;
    let client = daemon.client();
    let refusal = refused(client.embedder.embed("x").await, WorkerFailed)?;
    assert!(refusal.contains("it said nothing for 1 s"), "{refusal}");
    let setup = setup.setting("batch_timeout_s", "60").setting("model", "other");
    setup.write_config()?;
    client.manager.reload().await?;
    client.embedder.embed("x").await?;
    daemon.stop().await
}

async fn a_text_without_a_finite_vector_costs_no_worker() -> Outcome {
    let setup = with_graph(&graph(&[ids(), mask()], &[])).await?.env("OP_DBUS_CPU_ENGINE", "ort");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let expected = client.vectors(&["9"]).await?;
    let refusal = refused(client.embedder.embed("8").await, WorkerFailed)?;
    assert!(refusal.contains("it has the value -inf in a vector"), "{refusal}");
    assert_eq!(client.vectors(&["9"]).await?, expected);
    assert_eq!(client.counter("worker_restarts").await?, 0);
    daemon.stop().await
}

/// Outputs whose names tell nothing, beside the one for each token.
async fn which_output_of_an_own_graph_it_is_can_be_said() -> Outcome {
    let setup = Setup::sim()?;
    let mut graph = renamed(fs::read(fixture("golden/tiny-bert/onnx/model.onnx"))?);
    // As wide as the one for each token, as BERT's classifier head is; and others.
    for (name, width) in [("head", 24), ("one", 8), ("two", 4)] {
        // A message that comes again adds to the one before.
        graph.extend(field(7, field(12, port(name, FLOAT, &[0, width]))));
    }
    let path = setup.path("model.onnx");
    fs::write(&path, graph)?;
    fs::copy(fixture("golden/tiny-bert/tokenizer.json"), setup.path("tokenizer.json"))?;
    let import = |more: &[&'static str]| {
        let arguments = [&["--name", "own", "--max-input-tokens", "48"], more].concat();
        let (setup, path) = (&setup, &path);
        async move { setup.import(path, &arguments).await }
    };
    let refused = import(&[]).await?.stderr;
    for part in ["one ([-1, 8])", "two ([-1, 4])", OTHER, "say with --dimensions which it is"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    for pooling in [&["--dimensions", "24"][..], &["--dimensions", "24", "--pooling", "mean"]] {
        let refused = import(pooling).await?.stderr;
        for part in ["head has a vector per text", "sentence_embedding", "last_hidden_state"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
    let refused = import(&["--dimensions", "9"]).await?.stderr;
    for part in ["the embedding of 9 dimensions in f32; found: ", "one ([-1, 8])", "two ([-1, 4])"]
    {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(refused.contains(OTHER) && !refused.contains("--dimensions"), "{refused}");
    import(&["--dimensions", "8"]).await?.success()?;
    Ok(())
}

/// Of an output whose shape the file does not state the import knows too little: there is one for each token, and the
/// library works out that there is one for each text as well.
async fn an_output_that_turns_out_to_be_a_guess_is_not_taken() -> Outcome {
    let first = [number(2, INT64), field(8, "first"), field(9, 0_i64.to_le_bytes())].concat();
    let shapeless = [field(1, "output_1"), field(2, field(1, number(1, FLOAT)))].concat();
    let more = [
        field(1, node("Gather", &[OTHER, "first"], "output_1")),
        field(5, first),
        field(12, shapeless),
    ];
    // A message that comes again adds to the one before.
    let graph = [renamed(graph(&[ids(), mask()], &[])), field(7, more.concat())].concat();
    let setup = with_graph(&graph).await?.env("OP_DBUS_CPU_ENGINE", "ort");
    let refusal = setup.refusal(WorkerFailed).await?;
    for part in ["own/model.onnx", "output_1 has a vector per text", "sentence_embedding"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    Ok(())
}
