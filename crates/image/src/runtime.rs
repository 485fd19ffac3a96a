//! Detects language runtimes that look up code by its address.
//!
//! Such a runtime looks up program counters or return addresses in tables of its own. It does so to find the
//! references on a stack, to turn a fault into an exception, or to shadow memory. A clone's addresses are in
//! none of these tables. Where possible, a runtime is recognised by data that it cannot do without, so it is
//! found in stripped programs too.

use crate::bytes::{array, u32_at};
use crate::{Image, Mapping, Module, ModuleKind};
use addr::{Addr, AvmaRange, ReadMemory};
use memchr::memmem;

/// A runtime with tables of code addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Runtime {
    /// Go, including Go inside a C program.
    Go,
    /// A Java virtual machine.
    Jvm,
    /// GraalVM native images.
    NativeImage,
    /// V8: node, Chromium and related programs.
    V8,
    /// .NET.
    DotNet,
    /// Mono.
    Mono,
    /// LuaJIT.
    LuaJit,
    /// The Erlang machine with its JIT compiler.
    Erlang,
    /// OCaml, whose collector finds frames by return address.
    OCaml,
    /// PyPy.
    PyPy,
    /// AddressSanitizer, including the hardware-assisted one.
    AddressSanitizer,
    /// ThreadSanitizer.
    ThreadSanitizer,
    /// MemorySanitizer.
    MemorySanitizer,
    /// Valgrind: the code that runs is not the code that is mapped.
    Valgrind,
    /// DynamoRIO: as with Valgrind, the code that runs is not the code that is mapped.
    DynamoRio,
}

impl Runtime {
    /// Returns the stable name that JSON output uses.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Runtime::Go => "go",
            Runtime::Jvm => "jvm",
            Runtime::NativeImage => "native_image",
            Runtime::V8 => "v8",
            Runtime::DotNet => "dotnet",
            Runtime::Mono => "mono",
            Runtime::LuaJit => "luajit",
            Runtime::Erlang => "erlang",
            Runtime::OCaml => "ocaml",
            Runtime::PyPy => "pypy",
            Runtime::AddressSanitizer => "address_sanitizer",
            Runtime::ThreadSanitizer => "thread_sanitizer",
            Runtime::MemorySanitizer => "memory_sanitizer",
            Runtime::Valgrind => "valgrind",
            Runtime::DynamoRio => "dynamorio",
        }
    }
}

/// File names of mapped files, by their first characters.
const FILES: [(&str, Runtime); 20] = [
    ("libjvm.so", Runtime::Jvm),
    ("libcoreclr.so", Runtime::DotNet),
    ("libclrjit.so", Runtime::DotNet),
    ("libmono-", Runtime::Mono),
    ("libmonosgen-", Runtime::Mono),
    ("libmonoboehm-", Runtime::Mono),
    ("libv8.so", Runtime::V8),
    ("libnode.so", Runtime::V8),
    ("libluajit-", Runtime::LuaJit),
    ("libpypy", Runtime::PyPy),
    ("beam.smp", Runtime::Erlang),
    ("libasan.so", Runtime::AddressSanitizer),
    ("libhwasan.so", Runtime::AddressSanitizer),
    ("libclang_rt.asan", Runtime::AddressSanitizer),
    ("libclang_rt.hwasan", Runtime::AddressSanitizer),
    ("libtsan.so", Runtime::ThreadSanitizer),
    ("libclang_rt.tsan", Runtime::ThreadSanitizer),
    ("libclang_rt.msan", Runtime::MemorySanitizer),
    ("vgpreload_", Runtime::Valgrind),
    ("libdynamorio.so", Runtime::DynamoRio),
];

/// Names of symbols, from any table.
const SYMBOLS: [(&str, Runtime); 13] = [
    ("runtime.gopclntab", Runtime::Go),
    ("runtime.pclntab", Runtime::Go),
    ("JNI_CreateJavaVM", Runtime::Jvm),
    ("graal_create_isolate", Runtime::NativeImage),
    ("mono_jit_init", Runtime::Mono),
    ("luaJIT_setmode", Runtime::LuaJit),
    ("caml_startup", Runtime::OCaml),
    ("caml_frametable", Runtime::OCaml),
    ("pypy_main_startup", Runtime::PyPy),
    ("__asan_init", Runtime::AddressSanitizer),
    ("__hwasan_init", Runtime::AddressSanitizer),
    ("__tsan_init", Runtime::ThreadSanitizer),
    ("__msan_init", Runtime::MemorySanitizer),
];

/// First characters of symbols' names.
const SYMBOL_STARTS: [(&str, Runtime); 1] = [("_ZN2v88internal", Runtime::V8)];

/// Returns the first such runtime found in a process; `None` if there is none.
#[must_use]
pub fn detect(image: &Image, mem: &dyn ReadMemory) -> Option<Runtime> {
    by_file(image.maps())
        .or_else(|| image.modules().iter().find_map(by_symbol))
        .or_else(|| image.modules().iter().any(|m| has_go_tables(m, mem)).then_some(Runtime::Go))
        .or_else(|| image.modules().iter().any(|m| has_v8_names(m, mem)).then_some(Runtime::V8))
}

fn by_file(maps: &[Mapping]) -> Option<Runtime> {
    let names = maps.iter().filter_map(|m| m.file()?.rsplit('/').next());
    names
        .filter_map(|name| FILES.iter().find(|(start, _)| name.starts_with(start)))
        .map(|(_, runtime)| *runtime)
        .next()
}

fn by_symbol(module: &Module) -> Option<Runtime> {
    // `symbols` has only the symbols that the module defines. A sanitizer's weak hook is a use, not a
    // definition.
    let whole = SYMBOLS.iter().find(|(name, _)| module.symbols.named(name).next().is_some());
    let start = || SYMBOL_STARTS.iter().find(|(start, _)| module.symbols.with_prefix(start).is_some());
    whole.or_else(start).map(|(_, runtime)| *runtime)
}

/// The first bytes of `go.buildinfo`, which lies at the start of the data, aligned to 16 bytes.
const BUILD_INFO: &[u8; 14] = b"\xff Go buildinf:";
/// The distance within which a segment is searched for `go.buildinfo`, as in Go's own reader. Bytes.
const BUILD_INFO_WITHIN: u64 = 1 << 20;
/// The least alignment of both tables. Bytes.
const TABLE_ALIGN: u64 = 16;
/// The size of one read. Bytes.
const CHUNK: u64 = 4 << 20;

fn has_go_tables(m: &Module, mem: &dyn ReadMemory) -> bool {
    if m.kind == ModuleKind::Vdso {
        return false;
    }
    // The table of program counters is constant data; in a position-independent program it is relocated
    // (RELRO).
    m.segments.iter().filter(|s| !s.perms.x).any(|s| {
        let limit = if s.perms.w { m.relro.map_or(0, |r| r.len()) + BUILD_INFO_WITHIN } else { u64::MAX };
        let range = AvmaRange::with_len(s.range.start, s.file_backed.len().min(limit));
        let mut chunks = chunks(range).map_while(|chunk| Some((chunk, mem.bytes(chunk).ok()?)));
        chunks.any(|(chunk, bytes)| {
            // The search goes from one aligned address to the next.
            let skew = usize::try_from(chunk.start.0.wrapping_neg() % TABLE_ALIGN).unwrap_or(0);
            bytes.get(skew..).unwrap_or(&[]).chunks_exact(16).any(is_go_head)
        })
    })
}

/// Cuts a range into chunks to read. Each ends at an aligned address, so no table's head is cut.
fn chunks(range: AvmaRange) -> impl Iterator<Item = AvmaRange> {
    let mut from = range.start;
    std::iter::from_fn(move || {
        let chunk = AvmaRange::new(from, from.add(CHUNK).align_down(TABLE_ALIGN).min(range.end));
        from = chunk.end;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Names that V8 keeps among its constants, stripped or not, since its bytecode interpreter (2016): the name
/// of a builtin (`src/builtins/builtins-definitions.h`) and the name of a histogram of its collector
/// (`src/logging/counters-definitions.h`). A module with both contains V8. Debuggers and profilers for V8
/// contain names of builtins, but not of histograms.
const V8_NAMES: [&[u8]; 2] = [b"InterpreterEntryTrampoline", b"V8.GCFinalizeMC"];

fn has_v8_names(m: &Module, mem: &dyn ReadMemory) -> bool {
    m.kind != ModuleKind::Vdso && V8_NAMES.iter().all(|name| has_constant(m, mem, name))
}

/// Returns whether a module has these bytes among its constants.
fn has_constant(m: &Module, mem: &dyn ReadMemory, bytes: &[u8]) -> bool {
    let finder = memmem::Finder::new(bytes);
    // Older linkers put constants beside code, in the only segments that are not writable.
    let apart = m.segments.iter().any(|s| !s.perms.x && !s.perms.w);
    m.segments.iter().filter(|s| !s.perms.w && (!s.perms.x || !apart)).any(|s| {
        let range = s.file_backed;
        let mut from = range.start;
        while from < range.end {
            let to = from.add(CHUNK).min(range.end);
            // Each read goes beyond its chunk, so bytes across the boundary of two chunks are found.
            let more = to.add(bytes.len() as u64 - 1).min(range.end);
            match mem.bytes(AvmaRange::new(from, more)) {
                Ok(chunk) if finder.find(&chunk).is_some() => return true,
                Ok(_) => from = to,
                Err(_) => return false,
            }
        }
        false
    })
}

/// Returns whether 16 bytes at an aligned address begin one of Go's tables.
fn is_go_head(b: &[u8]) -> bool {
    if b.starts_with(BUILD_INFO) {
        return true;
    }
    // `.gopclntab` begins with the magic of Go 1.2, 1.16, 1.18 or 1.20, two zero bytes, the instruction size
    // (1 on x86) and the pointer size (8). Then follows the number of functions, never 0 or implausibly
    // large.
    let magic = matches!(u32_at(b, 0), Some(0xffff_fffb | 0xffff_fffa | 0xffff_fff0 | 0xffff_fff1));
    magic
        && array(b, 4) == Some([0, 0, 1, 8])
        && array(b, 8).map(u64::from_le_bytes).is_some_and(|n| n > 0 && n < 1 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;

    #[test]
    fn chunks_cover_a_range_and_cut_no_head() {
        for (start, len) in [(0x1000, 0), (0x1008, 40), (0x1008, 3 * CHUNK + 40), (0x1000, 2 * CHUNK)] {
            let range = AvmaRange::with_len(Avma(start), len);
            let all: Vec<AvmaRange> = chunks(range).collect();
            assert_eq!(all.iter().map(|c| c.len()).sum::<u64>(), len);
            assert!(all.windows(2).all(|w| w[0].end == w[1].start && w[0].end.0 % TABLE_ALIGN == 0));
            assert!(
                all.iter().all(|c| c.len() <= CHUNK) && all.first().is_none_or(|c| c.start == range.start)
            );
        }
    }

    #[test]
    fn heads() {
        let mut table = 0xffff_fff1_u32.to_le_bytes().to_vec();
        table.extend([0, 0, 1, 8]);
        table.extend(1234u64.to_le_bytes());
        assert!(is_go_head(&table));
        table[6] = 4;
        assert!(!is_go_head(&table));
        assert!(is_go_head(b"\xff Go buildinf:\x08\x02"));
        assert!(!is_go_head(&[0xff; 16]));
    }
}
