//! C++ virtual tables, found by their run-time type information.
//!
//! The Itanium C++ ABI (2.5.2, 2.9.5) lays a virtual table out as: offset to top, pointer to the class's
//! `type_info`, then the virtual functions. The table's address point is the first function. A `type_info`
//! begins with a pointer to the virtual table of one of a few classes of the C++ runtime. In a
//! position-independent module, every pointer is a relocated word. So there:
//! - A relocated word that points at the address point of one of these runtime tables is the start of a
//!   `type_info`.
//! - A relocated word that points at a `type_info` is the head of a virtual table if the word before it is
//!   not relocated and holds a possible offset to top.
//! - The relocated words behind the head that point at code are the table's functions, up to the first word
//!   that does not.
//!
//! A `type_info` of a derived class also points at the `type_info`s of its bases. But such a pointer lies
//! behind a relocated word (its name) or before a word that is not code.

use crate::{Image, Module};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::{BTreeMap, BTreeSet};

/// The C++ runtime's classes of `type_info` (Itanium C++ ABI, 2.9.5), by the symbols of their virtual tables.
const TYPE_INFO_TABLES: [&str; 8] = [
    "_ZTVN10__cxxabiv117__class_type_infoE",
    "_ZTVN10__cxxabiv120__si_class_type_infoE",
    "_ZTVN10__cxxabiv121__vmi_class_type_infoE",
    "_ZTVN10__cxxabiv116__enum_type_infoE",
    "_ZTVN10__cxxabiv119__pointer_type_infoE",
    "_ZTVN10__cxxabiv120__function_type_infoE",
    "_ZTVN10__cxxabiv117__array_type_infoE",
    "_ZTVN10__cxxabiv123__fundamental_type_infoE",
];
/// The distance from a table's symbol to its address point: offset to top and type. Bytes.
const ADDRESS_POINT: u64 = 16;

/// A word of a virtual table that holds a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VtableSlot {
    /// The address of the word.
    pub slot: Avma,
    /// The function's address, which the word holds.
    pub function: Avma,
}

/// Returns the function slots of all virtual tables, by module and address. Modules linked to fixed addresses
/// have none here, because their pointers cannot be distinguished from other words.
#[must_use]
pub fn vtable_slots(image: &Image, mem: &dyn ReadMemory) -> Vec<VtableSlot> {
    let runtime: BTreeSet<Avma> = image
        .modules()
        .iter()
        .flat_map(|m| TYPE_INFO_TABLES.iter().filter_map(|name| m.symbols.exported(name)))
        .map(|at| at.add(ADDRESS_POINT))
        .collect();
    if runtime.is_empty() {
        return Vec::new();
    }
    let usable = image.modules().iter().filter(|m| m.pie);
    let words: Vec<BTreeMap<Avma, Avma>> = usable.map(|m| relocated_words(m, mem)).collect();
    let types: BTreeSet<Avma> =
        words.iter().flatten().filter(|(_, value)| runtime.contains(value)).map(|(&at, _)| at).collect();
    let code: Vec<AvmaRange> = image.modules().iter().flat_map(|m| image.exec_ranges(m)).collect();
    let mut slots = Vec::new();
    for words in &words {
        for (&head, _) in words.iter().filter(|(at, value)| at.0 % 8 == 0 && types.contains(value)) {
            let before = head.sub(8);
            if words.contains_key(&before) || !mem.u64(before).is_ok_and(is_offset_to_top) {
                continue;
            }
            let mut slot = head.add(8);
            while let Some(&function) = words.get(&slot).filter(|f| code.iter().any(|r| r.contains(**f))) {
                slots.push(VtableSlot { slot, function });
                slot = slot.add(8);
            }
        }
    }
    slots
}

/// Returns whether a word can be an offset to top: zero or negative, since no object is over 2 GiB.
fn is_offset_to_top(word: u64) -> bool {
    (-(1i64 << 31)..=0).contains(&word.cast_signed())
}

/// Returns the words of a module that the loader relocated, with their present values.
fn relocated_words(module: &Module, mem: &dyn ReadMemory) -> BTreeMap<Avma, Avma> {
    let mut words = BTreeMap::new();
    for segment in &module.segments {
        let range: AvmaRange = segment.range;
        let from = module.relocations.partition_point(|r| r.at < range.start);
        let to = module.relocations.partition_point(|r| r.at < range.end);
        let relocs = module.relocations.get(from..to).unwrap_or_default();
        let Some(bytes) = (!relocs.is_empty()).then(|| mem.bytes(range).ok()).flatten() else { continue };
        for r in relocs {
            let o = r.at.since(range.start).and_then(|o| usize::try_from(o).ok());
            if let Some(word) = o.and_then(|o| bytes.get(o..)?.first_chunk::<8>()) {
                words.insert(r.at, Avma(u64::from_le_bytes(*word)));
            }
        }
    }
    words
}
