// Loads libnccl.so.2 and leads the entry points of the CUDA runtime inside it to ours, by its own symbol
// table.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stand_in.h"

enum { jump_size = 13 };

static void* stand_in_for(const char* name) {
  const struct entry* const tables[] = {stream_entries, memory_entries, device_entries, lookup_entries};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; ++i) {
    for (const struct entry* each = tables[i]; each->name != NULL; ++each) {
      if (strcmp(each->name, name) == 0) return each->function;
    }
  }
  return NULL;
}

struct wanted {
  const char* path;
  char* base;
};

static int find_base(struct dl_phdr_info* info, size_t size, void* data) {
  struct wanted* const wanted = data;
  (void)size;
  if (info->dlpi_name == NULL || strcmp(info->dlpi_name, wanted->path) != 0) return 0;
  wanted->base = (char*)info->dlpi_addr;
  return 1;
}

// movabs r11, target; jmp r11
static int lead_to(unsigned char* code, void* target) {
  unsigned char* const page = (unsigned char*)((uintptr_t)code & ~(uintptr_t)4095);
  const size_t size = (size_t)(code + jump_size - page);
  if (mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return -1;
  memcpy(code, "\x49\xbb", 2);
  memcpy(code + 2, &target, sizeof target);
  memcpy(code + 10, "\x41\xff\xe3", 3);
  return mprotect(page, size, PROT_READ | PROT_EXEC);
}

static int patch_symbols(char* base, const char* file) {
  const Elf64_Ehdr* const header = (const void*)file;
  const Elf64_Shdr* const sections = (const void*)(file + header->e_shoff);
  int patched = 0;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym* const symbols = (const void*)(file + sections[i].sh_offset);
    const char* const names = file + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k) {
      if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC || symbols[k].st_size < jump_size) continue;
      void* const function = stand_in_for(names + symbols[k].st_name);
      if (function == NULL) continue;
      if (lead_to((unsigned char*)base + symbols[k].st_value, function) != 0) return -1;
      ++patched;
    }
  }
  return patched;
}

// How many entry points lead to ours now; -1 (and a line on stderr) if that cannot be done. `symbols` is the
// same library, with its symbol table.
EXPORT int stand_in_load_nccl(const char* path, const char* symbols) {
  if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return -1;
  }
  struct wanted wanted = {path, NULL};
  dl_iterate_phdr(find_base, &wanted);
  const int descriptor = open(symbols, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (wanted.base == NULL || descriptor < 0 || fstat(descriptor, &status) != 0) {
    perror(symbols);
    return -1;
  }
  const size_t size = (size_t)status.st_size;
  char* const file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (file == MAP_FAILED) {
    perror(path);
    return -1;
  }
  const int patched = patch_symbols(wanted.base, file);
  munmap(file, size);
  return patched;
}
