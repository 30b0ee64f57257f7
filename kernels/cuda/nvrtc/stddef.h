// NVRTC brings no C headers; its front end has this in place of `__builtin_offsetof`.
#pragma once

#define offsetof(type, member) ((size_t)__INTADDR__(&(((type*)0)->member)))
