# curb_qualified(TARGET SCOPE FOLDER): TARGET, and in SCOPE those that link it, may include FOLDER's headers as
# "folder/header.hpp". The include path is a folder of its own with one link to FOLDER, so that it leads to no other.
set(CURB_QUALIFIED ${PROJECT_BINARY_DIR}/qualified)
function(curb_qualified target scope folder)
  get_filename_component(name ${folder} NAME)
  get_filename_component(layer ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(path ${CURB_QUALIFIED}/${layer}/${name})
  file(MAKE_DIRECTORY ${path})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${folder} ${path}/${name} SYMBOLIC)
  target_include_directories(${target} ${scope} ${path})
endfunction()
