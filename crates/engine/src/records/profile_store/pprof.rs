//! A profile as `pprof` reads it: `profile.proto`, compressed by gzip.
//!
//! There are three types of values, and a sample has a value of one type alone.
//! - `samples`: user samples by block. They have one frame, as the samples have no stacks.
//! - `calls`: calls by call instruction. They have two frames, the callee and the caller.
//! - `executions`: executions of blocks, one frame.
//!
//! Calls and executions are given for functions that were counted. If none was counted, they are given for
//! all functions, and only their ratios are meaningful.
//!
//! The messages are from <https://github.com/google/pprof/blob/main/proto/profile.proto>. An address is an
//! SVMA: the mappings begin at 0.

use crate::base::names::demangled;
use addr::Addr;
use flate2::Compression;
use flate2::write::GzEncoder;
use profile::{BuildId, CallGraph, Profile};
use prost::Message;
use std::collections::HashMap;
use std::io::Write;

#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// From the innermost frame on.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// The meaning of each type of value, for the file's comments.
const MEANING: [&str; 4] = [
    "samples: user samples by block; they have no callers, because the samples have no stacks",
    "calls: calls by call instruction; two frames, the callee and the caller",
    "executions: executions of blocks",
    "calls and executions are those of functions that were counted; if none was, only their ratios are meaningful",
];
/// The name of samples outside the functions of the profile.
pub(crate) const OTHER_CODE: &str = "[other code]";

/// Returns the file's bytes.
pub(crate) fn pprof(profile: &Profile) -> Vec<u8> {
    let mut file = GzEncoder::new(Vec::new(), Compression::default());
    // Writes to memory do not fail.
    let _ = file.write_all(&message(profile).encode_to_vec());
    file.finish().unwrap_or_default()
}

/// Returns a linker's build-id. For a derived id returns none: pprof refuses a local file with another build-id.
fn linkers_id(id: &BuildId) -> String {
    if image::is_derived(id.bytes()) { String::new() } else { id.to_string() }
}

fn message(profile: &Profile) -> Pprof {
    let graph = CallGraph::of(profile);
    let mut out = Builder::new(profile, &graph);
    let mut in_functions = 0u64;
    for (i, n) in graph.nodes().iter().enumerate() {
        let f = n.function;
        in_functions = in_functions.saturating_add(f.samples);
        let mut rest = f.samples;
        for (&at, &hits) in &f.hits {
            let hits = hits.min(rest);
            rest -= hits;
            out.sample(&[(i, at)], [hits, 0, 0]);
        }
        // Samples outside the blocks.
        out.sample(&[(i, 0)], [rest, 0, 0]);
        if graph.has_counts(i) {
            for (&at, block) in &f.blocks {
                out.sample(&[(i, at)], [0, 0, block.count]);
            }
        }
    }
    for call in graph.calls().into_iter().filter(|c| graph.has_counts(c.caller)) {
        out.sample(&[(call.callee, 0), (call.caller, call.at)], [0, call.count, 0]);
    }
    out.other_code(profile.samples.saturating_sub(in_functions));
    out.pprof
}

/// Returns the name of a function of the graph.
pub(crate) fn name_of(graph: &CallGraph<'_>, node: usize) -> String {
    let Some(n) = graph.nodes().get(node) else { return String::new() };
    let name = n.function.name.as_str();
    if name.is_empty() {
        format!("{}+{}", n.module.name, n.key.at)
    } else {
        demangled(name).unwrap_or_else(|| name.to_owned())
    }
}

struct Builder<'a> {
    graph: &'a CallGraph<'a>,
    pprof: Pprof,
    strings: HashMap<String, i64>,
    mappings: HashMap<&'a BuildId, u64>,
    /// Ids of locations by function and offset.
    locations: HashMap<(usize, i64), u64>,
}

impl<'a> Builder<'a> {
    fn new(profile: &'a Profile, graph: &'a CallGraph<'a>) -> Self {
        let mut out = Self {
            graph,
            pprof: Pprof::default(),
            strings: HashMap::new(),
            mappings: HashMap::new(),
            locations: HashMap::new(),
        };
        out.string("");
        let types = [("samples", "count"), ("calls", "count"), ("executions", "count")];
        out.pprof.sample_type =
            types.map(|(t, unit)| ValueType { r#type: out.string(t), unit: out.string(unit) }).to_vec();
        out.pprof.default_sample_type = out.string("samples");
        out.pprof.comment = MEANING.map(|m| out.string(m)).to_vec();
        let nanos = |n: u64, unit: i64| i64::try_from(n).unwrap_or(i64::MAX).saturating_mul(unit);
        out.pprof.time_nanos = nanos(profile.when, 1_000_000_000);
        out.pprof.duration_nanos = nanos(profile.sampled, 1_000_000);
        // The first mapping is taken for the program.
        let is_program = |name: &str| profile.exes.iter().any(|e| e.rsplit('/').next() == Some(name));
        let (first, rest): (Vec<_>, Vec<_>) = profile.modules.iter().partition(|(_, m)| is_program(&m.name));
        for (id, (build_id, module)) in (1..).zip(first.into_iter().chain(rest)) {
            out.mappings.insert(build_id, id);
            let mapping = Mapping {
                id,
                memory_start: 0,
                memory_limit: 0,
                filename: out.string(&module.name),
                build_id: out.string(&linkers_id(build_id)),
                has_functions: true,
            };
            out.pprof.mapping.push(mapping);
        }
        for (i, n) in graph.nodes().iter().enumerate() {
            let function = Function {
                id: i as u64 + 1,
                name: out.string(&name_of(graph, i)),
                system_name: out.string(&n.function.name),
            };
            out.pprof.function.push(function);
        }
        out
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let new = i64::try_from(self.pprof.string_table.len()).unwrap_or(0);
        self.pprof.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), new);
        new
    }

    fn location(&mut self, node: usize, offset: i64) -> u64 {
        if let Some(&known) = self.locations.get(&(node, offset)) {
            return known;
        }
        let Some(n) = self.graph.nodes().get(node) else { return 0 };
        let address = n.key.at.offset(offset).0;
        let mapping_id = self.mappings.get(n.build_id).copied().unwrap_or(0);
        if let Some(mapping) = self.pprof.mapping.iter_mut().find(|m| m.id == mapping_id) {
            mapping.memory_limit = mapping.memory_limit.max(address.saturating_add(1));
        }
        let id = self.pprof.location.len() as u64 + 1;
        self.pprof.location.push(Location {
            id,
            mapping_id,
            address,
            line: vec![Line { function_id: node as u64 + 1 }],
        });
        self.locations.insert((node, offset), id);
        id
    }

    /// Adds a sample, given from its innermost frame on, if it has a value.
    fn sample(&mut self, frames: &[(usize, i64)], values: [u64; 3]) {
        if values == [0; 3] {
            return;
        }
        let location_id = frames.iter().map(|&(node, at)| self.location(node, at)).collect();
        let value = values.map(|v| i64::try_from(v).unwrap_or(i64::MAX)).to_vec();
        self.pprof.sample.push(Sample { location_id, value });
    }

    /// Adds the samples outside the functions of the profile.
    fn other_code(&mut self, samples: u64) {
        if samples == 0 {
            return;
        }
        let function = self.pprof.function.len() as u64 + 1;
        let name = self.string(OTHER_CODE);
        self.pprof.function.push(Function { id: function, name, system_name: name });
        let id = self.pprof.location.len() as u64 + 1;
        let line = vec![Line { function_id: function }];
        self.pprof.location.push(Location { id, mapping_id: 0, address: 0, line });
        let value = vec![i64::try_from(samples).unwrap_or(i64::MAX), 0, 0];
        self.pprof.sample.push(Sample { location_id: vec![id], value });
    }
}

#[cfg(test)]
#[path = "pprof_tests.rs"]
mod tests;
