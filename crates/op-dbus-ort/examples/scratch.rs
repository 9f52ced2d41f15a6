//! Scratch.
use op_dbus_engine::{Backend, Batch};
use op_dbus_ort::{Graph, Options, OrtBackend};
use std::io::Write;
use std::time::Instant;

fn rss() -> String {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS")).collect::<Vec<_>>().join(" ").replace('\t', " ")
}

fn rows(path: &str) -> Vec<Vec<i32>> {
    std::fs::read_to_string(path).unwrap().lines().map(|l| l.split(' ').map(|x| x.parse().unwrap()).collect()).collect()
}

fn pack(rows: &[&Vec<i32>]) -> (Vec<i32>, Vec<i32>, usize) {
    let s = rows.iter().map(|r| r.len()).max().unwrap();
    let mut ids = vec![0; s * rows.len()];
    for (i, r) in rows.iter().enumerate() {
        ids[i * s..i * s + r.len()].copy_from_slice(r);
    }
    (ids, rows.iter().map(|r| r.len() as i32).collect(), s)
}

fn run(b: &mut OrtBackend, rows: &[&Vec<i32>], dims: usize) -> Vec<f32> {
    let (ids, lengths, sequence_length) = pack(rows);
    let mut out = vec![0.0; rows.len() * dims];
    b.run(&Batch { ids: &ids, lengths: &lengths, sequence_length }, &mut out).unwrap();
    out
}

fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t = Instant::now();
    match a[1].as_str() {
        "export" => {
            let x = op_dbus_graph::export::onnx_to_safetensors(&std::fs::read(&a[2]).unwrap()).unwrap();
            std::fs::write(&a[3], x).unwrap();
        }
        "compile" => {
            let recipe = op_dbus_graph::Recipe {
                family: serde_json::from_str(&format!("\"{}\"", a[2])).unwrap(),
                config: serde_json::from_slice(&std::fs::read(&a[3]).unwrap()).unwrap(),
                pooling: serde_json::from_str(&format!("\"{}\"", a[5])).unwrap(),
                normalize: a[6] == "1",
                max_input_tokens: a[7].parse().unwrap(),
                target: op_dbus_graph::Target { precision: op_dbus_graph::Precision::F32, layout: op_dbus_graph::Layout::Padded, dialect: op_dbus_graph::Dialect::OnnxRuntime },
            };
            let w = std::fs::read(&a[4]).unwrap();
            let t = Instant::now();
            let g = op_dbus_graph::compile(&recipe, &w).unwrap();
            eprintln!("compile {:?} {} bytes", t.elapsed(), g.len());
            std::fs::write(&a[8], g).unwrap();
        }
        // run|own RUNTIME GRAPH DIMS THREADS ROWS OUT
        "run" | "own" | "bench" => {
            let graph = if a[1] == "own" {
                Graph::Own { path: a[3].clone().into(), pooling: op_dbus_ort::Pooling::Mean, normalize: false }
            } else {
                Graph::Compiled(std::fs::read(&a[3]).unwrap())
            };
            let dims: usize = a[4].parse().unwrap();
            let o = Options { runtime: a[2].clone().into(), threads: a[5].parse().unwrap(), graph, dimensions: dims };
            let mut b = match OrtBackend::load(o) { Ok(b) => b, Err(e) => { eprintln!("{e}"); std::process::exit(1) } };
            eprintln!("loaded {:?} {} ms, {}", t.elapsed(), b.description().load_ms, rss());
            let all = rows(&a[6]);
            if a[1] == "bench" {
                let mut rows: Vec<&Vec<i32>> = all.iter().collect();
                rows.sort_by_key(|r| r.len());
                let mut batches: Vec<Vec<&Vec<i32>>> = vec![vec![]];
                for r in rows {
                    let l = batches.last_mut().unwrap();
                    if !l.is_empty() && (l.len() + 1) * r.len() > 512 { batches.push(vec![r]); } else { l.push(r); }
                }
                let tokens: usize = all.iter().map(Vec::len).sum();
                for b2 in &batches { run(&mut b, b2, dims); }
                eprintln!("{} batches, after warm-up {}", batches.len(), rss());
                let reps: usize = a[7].parse().unwrap();
                let mut rates = vec![];
                for _ in 0..reps {
                    let t = Instant::now();
                    for b2 in &batches { run(&mut b, b2, dims); }
                    let s = t.elapsed().as_secs_f64();
                    rates.push((tokens as f64 / s, all.len() as f64 / s));
                }
                rates.sort_by(|x, y| x.0.total_cmp(&y.0));
                eprintln!("tok/s {:.0} texts/s {:.0} (min {:.0} max {:.0}) {}", rates[reps / 2].0, rates[reps / 2].1, rates[0].0, rates[reps - 1].0, rss());
                return;
            }
            let mut f = std::fs::File::create(&a[7]).unwrap();
            let alone: Vec<f32> = all.iter().flat_map(|r| run(&mut b, &[r], dims)).collect();
            let refs: Vec<&Vec<i32>> = all.iter().collect();
            let together = run(&mut b, &refs, dims);
            let worst = alone.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            eprintln!("alone vs together max diff {worst:e}");
            // random batches
            let mut seed = 12345u64;
            let mut next = || { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; seed as usize };
            let mut w2 = 0f32;
            for _ in 0..50 {
                let n = 1 + next() % all.len();
                let pick: Vec<usize> = (0..n).map(|_| next() % all.len()).collect();
                let r: Vec<&Vec<i32>> = pick.iter().map(|&i| &all[i]).collect();
                let o = run(&mut b, &r, dims);
                for (k, &i) in pick.iter().enumerate() {
                    for d in 0..dims { w2 = w2.max((o[k * dims + d] - alone[i * dims + d]).abs()); }
                }
            }
            eprintln!("50 random batches max diff {w2:e}");
            for v in alone.iter().chain(&together) { f.write_all(&v.to_le_bytes()).unwrap(); }
            eprintln!("{:?} {}", t.elapsed(), rss());
        }
        _ => panic!(),
    }
}
