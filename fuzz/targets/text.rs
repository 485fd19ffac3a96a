//! The text form of graphs.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(graph) = code::parse(text) {
        assert_eq!(code::parse(&graph.to_string()).unwrap().to_string(), graph.to_string());
    }
});
